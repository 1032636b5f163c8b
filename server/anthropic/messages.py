"""POST /v1/messages: the sample of a chat job to a message or a stream of events."""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Any

from sanic import HTTPResponse, Request

from ortloom.models.tool_parsers.tool_parser import ArgumentsDelta, CallStart, ContentDelta
from ortloom.server.anthropic.events import BlockEvents, MessageWriter, event
from ortloom.server.anthropic.reply import (
    Block,
    ending,
    message_head,
    text_block,
    thinking_block,
    tool_block,
    usage,
)
from ortloom.server.openai.chat import Chat
from ortloom.server.openai.chat_chunks import joined
from ortloom.server.openai.detail import mask_member
from ortloom.server.openai.generation import generate
from ortloom.server.openai.output_parts import OutputEvent, ReasoningDelta, WholeOutput
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.shortcut import EventSink
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced


async def answer(chat: Chat) -> HTTPResponse:
    """The whole message."""
    sample = Sample(0)
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            sample.add(piece)
    chat.usage.add_sample(sample)
    whole = chat.output.whole("".join(sample.text))
    called = bool(whole.calls)
    stop_reason, stop_sequence = ending(sample.finish_reason, sample.stop_reason, called)
    body = {
        **message_head(chat.job.response_id, front.served_names[0]),
        "content": _blocks(whole),
        "stop_reason": stop_reason,
        "usage": _usage(chat),
    }
    if stop_sequence is not None:
        body["stop_sequence"] = stop_sequence
    body |= _detail(chat, sample)
    return json_response(body)


def _detail(chat: Chat, sample: Sample) -> dict[str, Any]:
    """`logprobs` and `sampling_mask` of all tokens, in chat's form, if they were asked for."""
    if chat.logprobs is None:
        return {}
    logprobs = chat.logprobs.build(sample.logprobs, sample.details)
    return {"logprobs": logprobs, **mask_member(chat.body, sample.masks)}


def _blocks(whole: WholeOutput) -> list[Block]:
    """At least one block: clients look at the first without asking."""
    blocks = [thinking_block(whole.reasoning)] if whole.reasoning else []
    if whole.content:
        blocks.append(text_block(whole.content))
    for call in whole.calls:
        blocks.append(tool_block(str(call.call_id), call.name, call.arguments))
    return blocks or [text_block("")]


async def stream(chat: Chat, request: Request) -> None:
    """The message as events; errors before the first engine output are raised."""
    front = chat.front
    message = _MessageEvents(chat)
    opening = [message.start()]
    spacing = Spacing(interval_of(front, chat.body.stream_interval))
    sse = MessageWriter(request)
    sink = EventSink(sse, spacing, message.of_piece, named=True)
    working = generate(chat.job, front.client, front.tokenizer, front.metrics, sink)
    pieces = spaced(working, spacing)
    async with sse, aclosing(pieces):
        async for piece in pieces:
            events = [*opening, *message.of_piece(piece)]
            opening = []
            if events:
                await sse.send_raw(b"".join(events))
                sink.begin()


class _MessageEvents:
    """Makes the events of one message."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._parts = chat.output.follow()
        self._blocks = BlockEvents()
        self._sample = Sample(0)  # followed only for the detail of its tokens

    def start(self) -> bytes:
        """The event that opens the stream; how much was cached is not known yet."""
        chat = self._chat
        prompt = chat.usage.running()["prompt_tokens"]
        message: dict[str, Any] = message_head(chat.job.response_id, chat.front.served_names[0])
        message |= {"stop_reason": None, "stop_sequence": None, "usage": usage(prompt, 0, None)}
        return event("message_start", message=message)

    def of_piece(self, piece: Piece) -> list[bytes]:
        """The events of one piece, with the last ones if it ends the sample."""
        self._chat.usage.add(piece)
        if self._chat.logprobs is not None:
            self._sample.add(piece)
        parts = self._parts.push(piece.text)
        if piece.finish_reason is None:
            return self._shown(parts)
        events = self._shown([*parts, *self._parts.finish()])
        return [*events, *self._blocks.close(), *self._end(piece)]

    def _shown(self, parts: list[OutputEvent]) -> list[bytes]:
        return [data for part in joined(parts) for data in self._of(part)]

    def _of(self, part: OutputEvent) -> Iterable[bytes]:
        match part:
            case ReasoningDelta(text):
                return self._blocks.thinking(text)
            case ContentDelta(text):
                return self._blocks.text(text)
            case CallStart(index, name, call_id):
                return self._blocks.call(index, str(call_id), name)
            case ArgumentsDelta(index, fragment):
                return self._blocks.arguments(index, fragment)

    def _end(self, piece: Piece) -> list[bytes]:
        called = self._parts.called
        stop_reason, stop_sequence = ending(piece.finish_reason, piece.stop_reason, called)
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        detail = _detail(self._chat, self._sample)
        told = event("message_delta", delta=delta, usage=_usage(self._chat), **detail)
        return [told, event("message_stop")]


def _usage(chat: Chat) -> dict[str, int]:
    counted = chat.usage.last_chunk()
    details = counted.get("prompt_tokens_details")
    cached = None if details is None else details["cached_tokens"]
    return usage(counted["prompt_tokens"], counted["completion_tokens"], cached)
