"""The events of a streamed message.

    message_start · per block content_block_start, content_block_delta…, content_block_stop ·
    message_delta · message_stop

Blocks follow each other: one is closed before the next begins.
"""

from typing import Any, Literal

import msgspec
from sanic import Request

from ortloom.server.anthropic.error_body import error_body
from ortloom.server.anthropic.reply import new_signature
from ortloom.server.error_handler import describe
from ortloom.server.sse import SseWriter

Kind = Literal["text", "thinking", "tool_use"]


def event(kind: str, **members: Any) -> bytes:
    """One event with its name."""
    data = msgspec.json.encode({"type": kind, **members})
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


class MessageWriter(SseWriter):
    """A stream of named events: no `[DONE]`, and an error is an event of its own kind.

    Args:
        request: the request that is answered.
    """

    def __init__(self, request: Request) -> None:
        super().__init__(request, done=False)

    def failure(self, error: BaseException) -> bytes:
        """The event that ends a stream which failed."""
        told = describe(error, self._request)
        body = error_body(told.message, told.type, told.param, told.code)
        return b"event: error\ndata: %b\n\n" % body


class BlockEvents:
    """Deltas of one message to events of its blocks.

    Words that come while a call is open wait until the call is closed: its arguments may go on.
    Calls come one after the other: none goes on once the next has begun. Each method returns the
    events to send, none for empty text.
    """

    def __init__(self) -> None:
        self._index = -1
        self._open: Kind | None = None
        self._call = -1
        self._waiting: list[str] = []

    def thinking(self, text: str) -> list[bytes]:
        """A piece of reasoning."""
        if not text:
            return []
        begin = [] if self._open == "thinking" else self._begin("thinking", thinking="")
        return [*begin, self._delta("thinking_delta", thinking=text)]

    def text(self, text: str) -> list[bytes]:
        """A piece of the words for the reader."""
        if not text:
            return []
        if self._open == "tool_use":
            self._waiting.append(text)
            return []
        begin = [] if self._open == "text" else self._begin("text", text="")
        return [*begin, self._delta("text_delta", text=text)]

    def call(self, number: int, identity: str, name: str) -> list[bytes]:
        """A call begins; calls are numbered from 0."""
        self._call = number
        return self._begin("tool_use", id=identity, name=name, input={})

    def arguments(self, number: int, fragment: str) -> list[bytes]:
        """A piece of the arguments of the call that is open."""
        if not fragment or self._open != "tool_use" or number != self._call:
            return []
        return [self._delta("input_json_delta", partial_json=fragment)]

    def close(self) -> list[bytes]:
        """End the block that is open, and say what waited for that."""
        events: list[bytes] = []
        if self._open == "thinking":
            events.append(self._delta("signature_delta", signature=new_signature()))
        if self._open is not None:
            events.append(event("content_block_stop", index=self._index))
            self._open = None
        if self._waiting:
            text = "".join(self._waiting)
            self._waiting = []
            events += [*self.text(text), *self.close()]
        return events

    def _begin(self, kind: Kind, **members: Any) -> list[bytes]:
        events = self.close()
        self._index += 1
        self._open = kind
        block = {"type": kind, **members}
        events.append(event("content_block_start", index=self._index, content_block=block))
        return events

    def _delta(self, kind: str, **members: Any) -> bytes:
        delta = {"type": kind, **members}
        return event("content_block_delta", index=self._index, delta=delta)
