"""Several conversations in one request: each is answered as alone, with a choice of its own."""

import asyncio
from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.server.context import FrontContext
from ortloom.server.openai import chat
from ortloom.server.openai.reply import json_response
from ortloom.server.openai.wire_batch import BatchFields
from ortloom.server.openai.wire_chat import ChatCompletionRequest

_OF_ONE = ("prompt_logprobs", "prompt_token_ids", "prompt_text")
"""Members of a reply that belong to its prompt; here each choice has its own."""


async def answer(
    body: ChatCompletionRequest, fields: BatchFields, request: Request, front: FrontContext
) -> HTTPResponse:
    """One reply whose choices are numbered as the conversations are.

    Raises:
        RequestError: what is wrong, naming the field; then no conversation is answered.
    """
    _check(body, fields, front)
    prepared = [
        await chat.prepare(body, conversation, request, front)
        for conversation in fields.conversations()
    ]
    tasks = [asyncio.create_task(chat.answer(work)) for work in prepared]
    try:
        responses = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return json_response(_joined([msgspec.json.decode(r.body or b"") for r in responses]))


def _check(body: ChatCompletionRequest, fields: BatchFields, front: FrontContext) -> None:
    if not fields.messages:
        raise InvalidRequest("messages must hold at least one conversation.", "messages")
    most = front.config.front.max_prompts
    if len(fields.messages) > most:
        raise InvalidRequest(
            f"messages holds {len(fields.messages)} conversations; at most {most} are allowed.",
            "messages",
        )
    if body.n is not None and body.n != 1:
        raise InvalidRequest(f"n must be 1 for a batch, got {body.n}.", "n")
    for name, asked in (
        ("stream", body.stream),
        ("tools", fields.tools is not None),
        ("use_beam_search", body.use_beam_search),
    ):
        if asked:
            raise UnsupportedParameter(f"{name} cannot be used with a batch.", name)


def _joined(replies: list[dict[str, Any]]) -> dict[str, Any]:
    """One reply out of many, in their order."""
    first = replies[0]
    choices = []
    for index, reply in enumerate(replies):
        own = {name: reply.get(name) for name in _OF_ONE}
        choices += [{**choice, "index": index, **own} for choice in reply["choices"]]
    usage = _summed([reply["usage"] for reply in replies])
    return {**first, "choices": choices, "usage": usage, **dict.fromkeys(_OF_ONE)}


def _summed(usages: list[Any]) -> Any:
    """The sum of usage objects, member by member; null where none has a number."""
    if any(isinstance(usage, dict) for usage in usages):
        known = [usage for usage in usages if isinstance(usage, dict)]
        return {name: _summed([usage.get(name) for usage in known]) for name in known[0]}
    numbers = [usage for usage in usages if isinstance(usage, int)]
    return sum(numbers) if numbers else None
