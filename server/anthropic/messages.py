"""POST /v1/messages: the samples of a chat job to a message or a stream of events."""

from contextlib import aclosing

from sanic import HTTPResponse, Request

from ortloom.server.anthropic.events import BlockEvents, MessageWriter, event
from ortloom.server.anthropic.reply import Block, ending, message_head, text_block, usage
from ortloom.server.openai.chat import Chat
from ortloom.server.openai.generation import generate
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.stream_interval import every


async def answer(chat: Chat) -> HTTPResponse:
    """The whole message."""
    sample = Sample(0)
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            sample.add(piece)
    chat.usage.add_sample(sample)
    text = "".join(sample.text)
    blocks: list[Block] = [text_block(text)]
    stop_reason, stop_sequence = ending(sample.finish_reason, sample.stop_reason, False)
    body = {
        **message_head(chat.job.response_id, front.served_names[0]),
        "content": blocks,
        "stop_reason": stop_reason,
        "usage": _usage(chat),
    }
    if stop_sequence is not None:
        body["stop_sequence"] = stop_sequence
    return json_response(body)


async def stream(chat: Chat, request: Request) -> None:
    """The message as events; errors before the first engine output are raised."""
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    pieces = every(working, None)
    blocks = BlockEvents()
    opening = [_start(chat)]
    async with MessageWriter(request) as sse, aclosing(pieces):
        async for piece in pieces:
            chat.usage.add(piece)
            events = [*opening, *blocks.text(piece.text)]
            opening = []
            if piece.finish_reason is not None:
                events += [*blocks.close(), *_end(chat, piece)]
            if events:
                await sse.send_raw(b"".join(events))


def _start(chat: Chat) -> bytes:
    """The event that opens the stream; how much was cached is not known yet."""
    prompt = chat.usage.running()["prompt_tokens"]
    message = message_head(chat.job.response_id, chat.front.served_names[0])
    message |= {"stop_reason": None, "stop_sequence": None, "usage": usage(prompt, 0, None)}
    return event("message_start", message=message)


def _end(chat: Chat, piece: Piece) -> list[bytes]:
    """The last two events."""
    stop_reason, stop_sequence = ending(piece.finish_reason, piece.stop_reason, False)
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    return [event("message_delta", delta=delta, usage=_usage(chat)), event("message_stop")]


def _usage(chat: Chat) -> dict[str, int]:
    counted = chat.usage.last_chunk()
    details = counted.get("prompt_tokens_details")
    cached = None if details is None else details["cached_tokens"]
    return usage(counted["prompt_tokens"], counted["completion_tokens"], cached)
