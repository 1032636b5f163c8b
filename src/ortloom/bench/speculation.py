"""Speculative decoding figures: the server's counters before and after a load."""

import re

import msgspec

from ortloom.bench.http_client import HttpClient

_PREFIX = "vllm:spec_decode_"
_LINE = re.compile(re.escape(_PREFIX) + r"(\w+?)(?:_total)?(?:\{(.*)\})? (\S+)")
_POSITION = re.compile(r'position="(\d+)"')


class SpecCounters(msgspec.Struct):
    """Sums over all engines. `per_position` counts accepted tokens by place in the draft."""

    drafts: float = 0.0
    draft_tokens: float = 0.0
    accepted: float = 0.0
    per_position: dict[int, float] = {}

    def since(self, before: "SpecCounters") -> "SpecCounters":
        """What was added."""
        return SpecCounters(
            self.drafts - before.drafts,
            self.draft_tokens - before.draft_tokens,
            self.accepted - before.accepted,
            {i: n - before.per_position.get(i, 0.0) for i, n in self.per_position.items()},
        )

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of the draft tokens, in percent."""
        return 100.0 * self.accepted / self.draft_tokens if self.draft_tokens else 0.0

    @property
    def acceptance_length(self) -> float:
        """Tokens a draft brought on average, the engine's own one included."""
        return 1.0 + self.accepted / self.drafts if self.drafts else 0.0

    def position_rates(self) -> list[float]:
        """Share of the drafts, 0 to 1, whose token at each place was accepted."""
        if not self.drafts:
            return []
        return [self.per_position[i] / self.drafts for i in sorted(self.per_position)]


def parse_counters(text: str) -> SpecCounters:
    """Read them out of a Prometheus text."""
    found = SpecCounters(per_position={})
    for line in text.splitlines():
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        name, labels, value = match[1], match[2] or "", float(match[3])
        if name == "num_drafts":
            found.drafts += value
        elif name == "num_draft_tokens":
            found.draft_tokens += value
        elif name == "num_accepted_tokens":
            found.accepted += value
        elif name == "num_accepted_tokens_per_pos" and (at := _POSITION.search(labels)):
            place = int(at[1])
            found.per_position[place] = found.per_position.get(place, 0.0) + value
    return found


async def fetch_counters(client: HttpClient) -> SpecCounters:
    """Ask the server; zeros where it has no metrics."""
    try:
        reply = await client.get("/metrics")
    except OSError:
        return SpecCounters(per_position={})
    return parse_counters(reply.body.decode("utf-8", "replace") if reply.status == 200 else "")
