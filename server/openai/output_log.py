"""Log lines of what was generated, for servers started with `--enable-log-outputs`.

Outputs are private: without the flag nothing of them is logged, and `--max-log-len` cuts what is.
"""

import logging
from dataclasses import dataclass, field

from ortloom.config import LogConfig
from ortloom.server.openai.sample import Piece

log = logging.getLogger("ortloom.requests")


@dataclass(slots=True)
class _Sofar:
    text: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)


class OutputLog:
    """Logs the samples of one API request: whole ones, and with deltas each piece of a stream.

    Args:
        response_id: the id the client sees.
        stream: whether the client gets a stream.
        config: `log_deltas`, and the limit `max_log_len` in characters and in token ids.
    """

    def __init__(self, response_id: str, stream: bool, config: LogConfig) -> None:
        self._id = response_id
        self._stream = stream
        self._deltas = stream and config.log_deltas
        self._cut = config.max_log_len
        self._samples: dict[int, _Sofar] = {}

    def note(self, piece: Piece) -> None:
        """One piece of one sample."""
        sample = self._samples.setdefault(piece.index, _Sofar())
        self._keep(sample, piece)
        if self._deltas:
            self._line(piece, " (streaming delta)", piece.text, piece.token_ids)
        if piece.finish_reason is not None:
            kind = " (streaming complete)" if self._stream else ""
            self._line(piece, kind, "".join(sample.text), sample.token_ids)
            del self._samples[piece.index]

    def _keep(self, sample: _Sofar, piece: Piece) -> None:
        """Remember what the last line will show, and no more."""
        if self._cut is None or len(sample.token_ids) <= self._cut:
            sample.token_ids += piece.token_ids
        if self._cut is None or sum(map(len, sample.text)) <= self._cut:
            sample.text.append(piece.text)

    def _line(self, piece: Piece, kind: str, text: str, token_ids: list[int]) -> None:
        log.info(
            "generated response %r[%d]%s: output: %r, output_token_ids: %s, finish_reason: %s",
            self._id,
            piece.index,
            kind,
            text[: self._cut],
            token_ids[: self._cut],
            piece.finish_reason,
        )


def output_log(response_id: str, stream: bool, config: LogConfig) -> OutputLog | None:
    """The log of a request's samples; None where nothing of them is logged."""
    return OutputLog(response_id, stream, config) if config.log_outputs else None
