"""POST /v1/chat/completions: body to job, and the job's samples to a reply or a stream."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.server.context import FrontContext
from ortloom.server.openai.chat_prompt import ChatPrompt, chat_prompt
from ortloom.server.openai.generation import GenerationJob, generate
from ortloom.server.openai.logprobs import ChatLogprobs, TokenNames, prompt_logprobs
from ortloom.server.openai.messages import text_of
from ortloom.server.openai.reply import ReplyHead, StreamUsage, json_response
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.sampling import sampling_params
from ortloom.server.openai.stream_interval import every, interval_of
from ortloom.server.openai.to_engine import (
    check_model,
    make_job,
    output_limit,
    prompt_job,
    response_id,
    sampling_context,
)
from ortloom.server.openai.tool_choice import check_tools
from ortloom.server.openai.usage import UsageCounter
from ortloom.server.openai.wire_chat import ChatCompletionRequest, TemplateFields
from ortloom.server.sse import SseWriter


@dataclass(slots=True)
class Chat:
    """One chat request on its way.

    Attributes:
        role: of the reply.
        echo: text the reply begins with; empty unless echo was asked for.
        logprobs: builds logprobs, None = not asked for.
    """

    body: ChatCompletionRequest
    front: FrontContext
    job: GenerationJob
    prompt: ChatPrompt
    usage: UsageCounter
    role: str
    echo: str
    logprobs: ChatLogprobs | None

    def head(self, kind: str) -> ReplyHead:
        """First members of a reply or chunk."""
        return ReplyHead(self.job.response_id, kind, self.front)

    @property
    def prompt_token_ids(self) -> list[int] | None:
        """The prompt's ids if they were asked for."""
        return self.job.prompts[0].token_ids if self.body.return_token_ids else None

    @property
    def prompt_text(self) -> str | None:
        """The rendered prompt if it was asked for."""
        return self.prompt.text if self.body.return_prompt_text else None


async def prepare(
    body: ChatCompletionRequest, fields: TemplateFields, request: Request, front: FrontContext
) -> Chat:
    """Check a body and make its job.

    Args:
        body: sampling and reply fields.
        fields: what the chat template sees, from the same body.
        request: for its headers.
        front: the front's objects.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(body.model, front)
    if body.return_assistant_tokens_mask:
        raise UnsupportedParameter(
            "return_assistant_tokens_mask is not supported.", "return_assistant_tokens_mask"
        )
    check_tools(body, fields.tools)
    context = sampling_context(front)
    top = _top_logprobs(body)
    params = sampling_params(body, context, top, body.prompt_logprobs)
    requested = body.max_completion_tokens
    requested = body.max_tokens if requested is None else requested
    limit = output_limit(requested, None, front)
    whole = body.truncate_prompt_tokens is None
    prompt = await chat_prompt(fields, bool(body.add_special_tokens), front, limited=whole)
    only = prompt_job(prompt.token_ids, prompt.text, body, limit, params, context)
    response = response_id("chatcmpl", request, body.request_id)
    job = make_job(response, [only], params, body, request, front)
    role = _role(fields, front)
    return Chat(
        body=body,
        front=front,
        job=job,
        prompt=prompt,
        usage=UsageCounter(job, front.config.front.enable_prompt_tokens_details),
        role=role,
        echo=_echo(body, fields, role),
        logprobs=None if top is None else _logprobs(body, top, front),
    )


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    """Logprobs to ask the engine for; None = off."""
    top = body.top_logprobs
    if top is not None and (top < -1 or (top != 0 and not body.logprobs)):
        rule = "needs logprobs=true" if top >= -1 else "must be -1 or at least 0"
        raise InvalidRequest(f"top_logprobs {rule}.", "top_logprobs")
    return (top or 0) if body.logprobs else None


def _logprobs(body: ChatCompletionRequest, top: int, front: FrontContext) -> ChatLogprobs:
    asked = body.return_tokens_as_token_ids
    as_ids = front.config.front.return_tokens_as_token_ids if asked is None else asked
    names = TokenNames(front.tokenizer, as_ids)
    return ChatLogprobs(names, top, keep_all=body.logprob_token_ids is not None)


def _role(fields: TemplateFields, front: FrontContext) -> str:
    """The responder's role, or that of the message that is continued."""
    if fields.add_generation_prompt is False and fields.messages:
        return fields.messages[-1].role
    return front.config.front.response_role


def _echo(body: ChatCompletionRequest, fields: TemplateFields, role: str) -> str:
    if not body.echo or not fields.messages or fields.messages[-1].role != role:
        return ""
    return text_of(fields.messages[-1])


async def answer(chat: Chat) -> HTTPResponse:
    """The whole reply."""
    samples = [Sample(i) for i in range(chat.job.n)]
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            samples[piece.index].add(piece)
    for sample in samples:
        chat.usage.add_sample(sample)
    head = chat.head("chat.completion")
    scored = samples[0].prompt_logprobs
    body = {
        **head.members,
        "choices": [_choice(chat, sample) for sample in samples],
        "service_tier": None,
        "system_fingerprint": head.fingerprint,
        "usage": chat.usage.whole(),
        "prompt_logprobs": None if scored is None else prompt_logprobs(scored, front.tokenizer),
        "prompt_token_ids": chat.prompt_token_ids,
        "prompt_text": chat.prompt_text,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": None,
    }
    return json_response(body)


def _choice(chat: Chat, sample: Sample) -> dict[str, Any]:
    message = {
        "role": chat.role,
        "content": chat.echo + "".join(sample.text),
        "refusal": None,
        "annotations": None,
        "audio": None,
        "function_call": None,
        "reasoning": None,
    }
    return {
        "index": sample.index,
        "message": message,
        "logprobs": None if chat.logprobs is None else chat.logprobs.build(sample.logprobs),
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "token_ids": sample.token_ids if chat.body.return_token_ids else None,
        "routed_experts": None,
    }


async def stream(chat: Chat, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    front = chat.front
    working = generate(chat.job, front.client, front.tokenizer, front.metrics)
    pieces = every(working, interval_of(front, chat.body.stream_interval))
    chunks = _Chunks(chat)
    opening = chunks.opening()
    async with SseWriter(request) as sse, aclosing(pieces):
        async for piece in pieces:
            await sse.send(*opening, chunks.delta(piece))
            opening = []
        if chunks.usage.last:
            await sse.send(chunks.last())


class _Chunks:
    """Makes the events of one stream."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._head = chat.head("chat.completion.chunk")
        self.usage = StreamUsage(chat.body, chat.front.config.front.enable_force_include_usage)

    def _event(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        event: dict[str, Any] = {**self._head.members, "choices": choices}
        if self.usage.every:
            event["usage"] = self._chat.usage.running()
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

    def delta(self, piece: Piece) -> bytes:
        """The event of one piece."""
        chat = self._chat
        chat.usage.add(piece)
        choice: dict[str, Any] = {
            "index": piece.index,
            "delta": {"content": piece.text},
            "logprobs": None if chat.logprobs is None else chat.logprobs.build(piece.logprobs),
            "finish_reason": piece.finish_reason,
        }
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
        choice["token_ids"] = piece.token_ids if chat.body.return_token_ids else None
        event = self._event([choice])
        if piece.finish_reason is not None and not self.usage.last:
            event["system_fingerprint"] = self._head.fingerprint
        return msgspec.json.encode(event)

    def last(self) -> bytes:
        """The usage event."""
        event = {**self._head.members, "choices": [], "usage": self._chat.usage.last_chunk()}
        event["system_fingerprint"] = self._head.fingerprint
        return msgspec.json.encode(event)
