"""The events of a chat stream, made from the pieces of its samples.

Without parsers every piece is one chunk. With them a piece gives a chunk for each thing it shows,
so a client that looks at one member of a delta, or at the first call only, misses nothing; a piece
that shows nothing gives none, unless it ends the sample or its token ids were asked for. Logprobs
of such a piece go with the next chunk.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from ortloom.models.tool_parsers.tool_parser import ArgumentsDelta, CallStart, ContentDelta
from ortloom.runtime.messages import SamplingMask, TokenDetail, TokenLogprobs
from ortloom.server.openai.detail import mask_member
from ortloom.server.openai.event_template import HOLE, event_template, to_json
from ortloom.server.openai.output_parts import OutputEvent, ReasoningDelta
from ortloom.server.openai.reply import StreamUsage
from ortloom.server.openai.sample import Piece

if TYPE_CHECKING:
    from ortloom.server.openai.chat import Chat


def delta_of(event: OutputEvent) -> dict[str, Any]:
    """An event as the `delta` of a chunk."""
    match event:
        case ReasoningDelta(text):
            return {"reasoning": text}
        case ContentDelta(text):
            return {"content": text}
        case CallStart(index, name, call_id):
            call: dict[str, Any] = {"id": call_id, "type": "function", "index": index}
            return {"content": None, "tool_calls": [{**call, "function": {"name": name}}]}
        case ArgumentsDelta(index, fragment):
            function = {"arguments": fragment}
            return {"content": None, "tool_calls": [{"index": index, "function": function}]}


@dataclass(slots=True)
class _Unsent:
    """What belongs to tokens of pieces that showed nothing yet."""

    logprobs: list[TokenLogprobs] = field(default_factory=list)
    details: list[TokenDetail] = field(default_factory=list)
    masks: list[SamplingMask] = field(default_factory=list)

    def add(self, piece: Piece) -> None:
        """Append a piece's."""
        self.logprobs += piece.logprobs
        self.details += piece.details
        self.masks += piece.masks


class ChatChunks:
    """Makes the events of one stream."""

    def __init__(self, chat: "Chat") -> None:
        self._chat = chat
        self._head = chat.head("chat.completion.chunk")
        self._parses = chat.front.parsers.any or not chat.output.plain
        self._parts = [chat.output.follow() for _ in range(chat.job.n)]
        self._unsent = [_Unsent() for _ in range(chat.job.n)]
        body = chat.body
        hidden = chat.output.reasoning_parser is not None and not chat.output.include_reasoning
        self._shows_ids = bool(body.return_token_ids) and not hidden
        self._logprobs = None if hidden else chat.logprobs
        self.usage = StreamUsage(body, chat.front.config.front.enable_force_include_usage)
        self._plain = not (self._parses or self._shows_ids or body.logprobs_detail)
        self._templates: dict[int, bytes] = {}

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        event: dict[str, Any] = {**self._head.members, "choices": choices}
        if self.usage.every:
            event["usage"] = self._chat.usage.running_chat()
        return event

    def opening(self) -> list[bytes]:
        """The role event of each choice, then its echo."""
        chat = self._chat
        events = []
        for index in range(chat.job.n):
            delta = {"role": chat.role, "content": ""}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            event = self._event([choice])
            event["prompt_token_ids"] = chat.prompt_token_ids
            event["prompt_text"] = chat.prompt_text
            events.append(event)
        for index in range(chat.job.n if chat.echo else 0):
            delta = {"content": chat.echo}
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            events.append(self._event([choice]))
        return [msgspec.json.encode(event) for event in events]

    def of_piece(self, piece: Piece) -> list[bytes]:
        """The events of one piece."""
        self._chat.usage.add(piece)
        if self._plain and piece.finish_reason is None:
            return [self._plain_event(piece)]
        ends = piece.finish_reason is not None
        deltas = self._deltas(piece)
        waiting = self._unsent[piece.index]
        waiting.add(piece)
        if not deltas:
            if not ends and not self._shows_ids:
                return []
            deltas = [{}]
        self._unsent[piece.index] = _Unsent()
        called = self._parts[piece.index].called
        reason = self._chat.output.finish_reason(piece.finish_reason, called)
        events = []
        for number, delta in enumerate(deltas):
            last = number == len(deltas) - 1
            first = number == 0
            choice: dict[str, Any] = {
                "index": piece.index,
                "delta": delta,
                "logprobs": self._logprobs.build(waiting.logprobs, waiting.details)
                if first and self._logprobs
                else None,
                "finish_reason": reason if last else None,
            }
            if ends and last:
                choice["stop_reason"] = piece.stop_reason
            choice["token_ids"] = piece.token_ids if first and self._shows_ids else None
            choice |= mask_member(self._chat.body, waiting.masks if first else [])
            event = self._event([choice])
            if ends and last and not self.usage.last:
                event["system_fingerprint"] = self._head.fingerprint
            events.append(msgspec.json.encode(event))
        return events

    def _plain_event(self, piece: Piece) -> bytes:
        """The usual event, as `of_piece` makes it the long way."""
        template = self._templates.get(piece.index)
        if template is None:
            template = self._templates[piece.index] = self._template(piece.index)
        values = [to_json(piece.text)]
        if self._logprobs is not None:
            values.append(self._logprobs.json(piece.logprobs))
        if self.usage.every:
            values.append(to_json(self._chat.usage.running_chat()))
        return template % tuple(values)

    def _template(self, index: int) -> bytes:
        choice = {
            "index": index,
            "delta": {"content": HOLE},
            "logprobs": HOLE if self._logprobs else None,
            "finish_reason": None,
            "token_ids": None,
        }
        event: dict[str, Any] = {**self._head.members, "choices": [choice]}
        if self.usage.every:
            event["usage"] = HOLE
        return event_template(event)

    def _deltas(self, piece: Piece) -> list[dict[str, Any]]:
        """What a piece shows; exactly one delta where nothing is parsed."""
        if not self._parses:
            return [{"content": piece.text}]
        parts = self._parts[piece.index]
        events = parts.push(piece.text)
        if piece.finish_reason is not None:
            events += parts.finish()
        return [delta_of(event) for event in joined(events)]

    def last(self) -> bytes:
        """The usage event."""
        event = {**self._head.members, "choices": [], "usage": self._chat.usage.last_chunk()}
        event["system_fingerprint"] = self._head.fingerprint
        if self._chat.job.timing is not None:
            event["metrics"] = self._chat.job.metrics()
        return msgspec.json.encode(event)


def joined(events: list[OutputEvent]) -> list[OutputEvent]:
    """Neighbouring pieces of the same thing put together."""
    out: list[OutputEvent] = []
    for event in events:
        before = out[-1] if out else None
        match before, event:
            case ReasoningDelta(a), ReasoningDelta(b):
                out[-1] = ReasoningDelta(a + b)
            case ContentDelta(a), ContentDelta(b):
                out[-1] = ContentDelta(a + b)
            case ArgumentsDelta(i, a), ArgumentsDelta(j, b) if i == j:
                out[-1] = ArgumentsDelta(i, a + b)
            case _:
                out.append(event)
    return out
