"""The short way of a stream's pieces: from the engine's message to the client's socket at once.

Usually a handler sleeps until its next piece, writes it and sleeps again. Waking it costs more
than all else that a token takes in a front, so while everything is as usual (the handler waits,
the client keeps up, the piece is a small one in the middle of a sample) the pieces go round it:
the engine's client offers an output, `Shortcut` makes the piece and `PieceSink` writes its events,
all in the turn of the loop in which the engine's message came. Everything else takes the long way,
through the handler: the first piece, the last one, large ones, and all while a write waits.
"""

from collections.abc import Callable
from typing import Protocol

from ortloom.runtime.messages import EngineOutput
from ortloom.server.metrics import RequestMetrics
from ortloom.server.openai.off_loop import INLINE_ENTRIES, entry_count
from ortloom.server.openai.sample import Piece, SampleText
from ortloom.server.openai.stream_interval import Spacing
from ortloom.server.sse import SseWriter


class PieceSink(Protocol):
    """Where pieces go that do not wait for their handler."""

    def ready(self, output: EngineOutput) -> bool:
        """Whether the piece of an output can be written now."""

    def take(self, piece: Piece) -> None:
        """Write a piece; called only where `ready` was true."""


class Shortcut:
    """The taker of one sample's outputs (`EngineClient.generate`).

    Args:
        text: follows the sample; shared with the long way.
        measured: counts its outputs.
        note: tells the logs of a piece; None = there are none.
        sink: writes it.
        clear: whether no earlier piece is on the long way behind the reader; None = none can be.
    """

    def __init__(
        self,
        text: SampleText,
        measured: RequestMetrics,
        note: Callable[[Piece], None] | None,
        sink: PieceSink,
        clear: Callable[[], bool] | None,
    ) -> None:
        self._text = text
        self._measured = measured
        self._note = note
        self._sink = sink
        self._clear = clear
        self.last: Piece | None = None
        """The piece that a stop string ended; it takes the long way in place of its output."""

    def __call__(self, output: EngineOutput) -> bool:
        """Take an output in the middle of the sample."""
        if output.finish_reason is not None or output.prompt_logprobs is not None:
            return False
        if not output.new_token_ids or self.last is not None:
            return False
        if self._clear is not None and not self._clear():
            return False
        if not self._sink.ready(output):
            return False
        piece = self._text.push(output)
        self._measured.on_output(piece.output)
        if piece.finish_reason is not None:
            self.last = piece
            return False
        if self._note is not None:
            self._note(piece)
        self._sink.take(piece)
        return True


class EventSink:
    """Writes the events of pieces to a stream.

    Args:
        sse: the stream.
        spacing: which pieces are put together; shared with the long way.
        events: makes the payloads of a piece's events.
        named: they are ready-made events with names.
    """

    def __init__(
        self,
        sse: SseWriter,
        spacing: Spacing,
        events: Callable[[Piece], list[bytes]],
        *,
        named: bool = False,
    ) -> None:
        self._begun = False
        self._send = sse.send_raw_at_once if named else sse.send_at_once
        self._sse = sse
        self._spacing = spacing
        self._events = events

    def begin(self) -> None:
        """The handler has sent the first piece, with all that comes before it: from here on."""
        self._begun = True

    def ready(self, output: EngineOutput) -> bool:
        """See PieceSink; what would be built in a thread is left to the handler."""
        if not self._begun:
            return False
        if output.logprobs is not None:
            entries = entry_count(output.logprobs)
            if entries * self._spacing.most_tokens > INLINE_ENTRIES:
                return False
        return self._sse.ready

    def take(self, piece: Piece) -> None:
        """See PieceSink."""
        due = piece if self._spacing.passes else self._spacing.push(piece)
        if due is not None:
            self._send(self._events(due))
