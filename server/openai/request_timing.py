"""The `metrics` member of replies (`--enable-per-request-metrics`): times of one API request."""

from dataclasses import dataclass

from ortloom.runtime.messages import RequestTimes
from ortloom.server.openai.sample import Piece


@dataclass(slots=True)
class _Sample:
    tokens: int = 0
    times: RequestTimes | None = None


class RequestTiming:
    """Collects the engine's times of all samples.

    Args:
        arrival: monotonic time the request came in.
    """

    def __init__(self, arrival: float) -> None:
        self._arrival = arrival
        self._samples: dict[int, _Sample] = {}

    def note(self, piece: Piece) -> None:
        """One piece of one sample."""
        sample = self._samples.setdefault(piece.index, _Sample())
        sample.tokens += len(piece.token_ids)
        sample.times = piece.output.times or sample.times

    def body(self) -> dict[str, float | None]:
        """The member: milliseconds and tokens a second; what cannot be known is null. Of several
        samples the first token and the last one of any counts, and the gaps of all."""
        times = [s.times for s in self._samples.values() if s.times is not None]
        first = min((t.first_token for t in times if t.first_token), default=None)
        last = max((t.last_token for t in times if t.last_token), default=None)
        queued = min((t.queued for t in times if t.queued), default=None)
        scheduled = min((t.first_scheduled for t in times if t.first_scheduled), default=None)
        tokens = sum(sample.tokens for sample in self._samples.values())
        span = _between(scheduled, last)
        return {
            "time_to_first_token_ms": _ms(_between(self._arrival, first)),
            "generation_time_ms": _ms(_between(first, last)),
            "queue_time_ms": _ms(_between(queued, scheduled)),
            "mean_itl_ms": _ms(self._mean_gap()),
            "tokens_per_second": tokens / span if span else None,
        }

    def _mean_gap(self) -> float | None:
        gaps, seconds = 0, 0.0
        for sample in self._samples.values():
            if sample.times is not None and sample.times.first_token and sample.tokens > 1:
                gaps += sample.tokens - 1
                seconds += max(0.0, sample.times.last_token - sample.times.first_token)
        return seconds / gaps if gaps else None


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
