"""From generated token ids back to the OpenAI reply or chunk that they stand for."""

import dataclasses
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar, cast

import msgspec
from sanic import Request

from ortloom.errors import InvalidRequest, SchemaViolation
from ortloom.runtime.messages import EngineOutput
from ortloom.server.context import FrontContext
from ortloom.server.limits import decode_json
from ortloom.server.metrics import FrontMetrics
from ortloom.server.openai import chat, completions
from ortloom.server.openai.derender_chunk import (
    CHAT_CHUNK,
    TEXT_CHUNK,
    chunk_reply,
    outputs_until,
    usage_chunk,
)
from ortloom.server.openai.generated import check_generated, has_detail, id_of, most_listed
from ortloom.server.openai.generation import GenerationJob
from ortloom.server.openai.replay import EventCatcher, ReplayClient, output_of, reply_of
from ortloom.server.openai.to_engine import check_model, engine_ready
from ortloom.server.openai.wire_chat import ChatCompletionRequest, ChatMessage, TemplateFields
from ortloom.server.openai.wire_common import GenerationRequest
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.openai.wire_derender import (
    DerenderChat,
    DerenderCommon,
    DerenderCompletion,
    Generated,
    StreamState,
)

Body = TypeVar("Body", bound=GenerationRequest)

_NOTHING = (b"", b"null")


async def chat_reply(asked: DerenderChat, request: Request, front: FrontContext) -> dict[str, Any]:
    """The chat completion of a generate reply.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(asked.model, front)
    reply = _required(asked.generate_response, "generate_response")
    check_generated(reply, front)
    body, fields = _chat_request(asked, [reply])
    replayed = _front(front, [[output_of(choice)] for choice in reply.choices])
    work = await chat.prepare(body, fields, request, replayed)
    work.job = _with_prompts(work.job, [asked.prompt_token_ids or reply.prompt_token_ids])
    answer = reply_of(await chat.answer(work))
    count = asked.prompt_tokens
    _finish(answer, "chatcmpl", [reply], None if count is None else [count])
    return answer


async def completion_reply(
    asked: DerenderCompletion, request: Request, front: FrontContext
) -> dict[str, Any]:
    """The completion of one generate reply a prompt.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(asked.model, front)
    replies = _required(asked.generate_responses, "generate_responses")
    if not replies:
        raise InvalidRequest("generate_responses must not be empty.", "generate_responses")
    for reply in replies:
        check_generated(reply, front)
    counts, ids = _of_each(asked, len(replies))
    body = _completion_request(asked, replies, ids)
    outputs = [[output_of(choice)] for reply in replies for choice in reply.choices]
    work = await completions.prepare(body, request, _front(front, outputs))
    if len(work.job.prompts) != len(replies):
        raise InvalidRequest(
            f"completion_request has {len(work.job.prompts)} prompts and generate_responses "
            f"{len(replies)} entries.",
            "generate_responses",
        )
    work.job = _with_prompts(work.job, ids)
    answer = reply_of(await completions.answer(work))
    _finish(answer, "cmpl", replies, counts)
    return answer


async def chat_chunk(asked: DerenderChat, request: Request, front: FrontContext) -> dict[str, Any]:
    """The chat chunk of a generate chunk, and the state for the next one.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(asked.model, front)
    chunk = _required(asked.generate_chunk, "generate_chunk")
    state = asked.stream_state or StreamState()
    outputs = outputs_until(chunk, state, front)
    if outputs is None:
        return usage_chunk(chunk, state, CHAT_CHUNK, "chatcmpl", front, asked.prompt_tokens)
    body, fields = _chat_request(asked, [chunk])
    work = await chat.prepare(body, fields, request, _front(front, [outputs]))
    work.job = _with_prompts(work.job, [asked.prompt_token_ids or chunk.prompt_token_ids])
    catcher = EventCatcher(request)
    await chat.stream(work, cast(Request, catcher))
    return chunk_reply(chunk, state, catcher.events(), CHAT_CHUNK, "chatcmpl", front)


async def completion_chunk(
    asked: DerenderCompletion, request: Request, front: FrontContext
) -> dict[str, Any]:
    """The completion chunk of a generate chunk, and the state for the next one.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(asked.model, front)
    chunk = _required(asked.generate_chunk, "generate_chunk")
    state = asked.stream_state or StreamState()
    outputs = outputs_until(chunk, state, front)
    count = asked.prompt_tokens if isinstance(asked.prompt_tokens, int) else None
    if outputs is None:
        return usage_chunk(chunk, state, TEXT_CHUNK, "cmpl", front, count)
    given = [i for i in asked.prompt_token_ids or () if isinstance(i, int)]
    ids = given or chunk.prompt_token_ids
    body = _completion_request(asked, [chunk], [ids])
    if isinstance(body.prompt, list):
        body = msgspec.structs.replace(body, prompt=ids or [0])
    work = await completions.prepare(body, request, _front(front, [outputs]))
    work.job = _with_prompts(work.job, [ids])
    catcher = EventCatcher(request)
    await completions.stream(work, cast(Request, catcher))
    return chunk_reply(chunk, state, catcher.events(), TEXT_CHUNK, "cmpl", front)


def _required(value: Any, name: str) -> Any:
    if value is None:
        raise SchemaViolation(
            f"1 validation error: Field required at 'body.{name}'.", f"body.{name}"
        )
    return value


def _of_each(
    asked: DerenderCompletion, count: int
) -> tuple[list[int] | None, list[list[int] | None]]:
    """Prompt lengths and ids, one a reply."""
    counts, ids = asked.prompt_tokens, asked.prompt_token_ids
    if counts is not None and (not isinstance(counts, list) or len(counts) != count):
        raise InvalidRequest(
            f"prompt_tokens must be a list of {count}, as generate_responses is.", "prompt_tokens"
        )
    if ids is None:
        replies = asked.generate_responses or []
        return counts, [reply.prompt_token_ids for reply in replies]
    if len(ids) != count or any(isinstance(i, int) for i in ids):
        raise InvalidRequest(
            f"prompt_token_ids must be a list of {count} lists, as generate_responses is.",
            "prompt_token_ids",
        )
    return counts, [i if isinstance(i, list) else None for i in ids]


def _chat_request(
    asked: DerenderChat, replies: Sequence[Generated]
) -> tuple[ChatCompletionRequest, TemplateFields]:
    """What had been asked, or a request that fits the reply."""
    raw = bytes(asked.chat_request)
    if raw in _NOTHING:
        body = ChatCompletionRequest()
        fields = TemplateFields(messages=[ChatMessage(role="user", content="")])
    else:
        body = decode_json(raw, ChatCompletionRequest)
        fields = decode_json(raw, TemplateFields)
    top = most_listed(replies)
    if top is not None and not body.logprobs:
        shown = body.top_logprobs or 0 if body.logprobs_detail else top
        body = msgspec.structs.replace(body, logprobs=True, top_logprobs=shown)
    elif top is None:
        body = msgspec.structs.replace(body, logprobs=None, top_logprobs=None)
    return _replayable(body, asked, replies), fields


def _completion_request(
    asked: DerenderCompletion, replies: Sequence[Generated], ids: Sequence[list[int] | None]
) -> CompletionRequest:
    """What had been asked, or a request that fits the replies."""
    raw = bytes(asked.completion_request)
    if raw in _NOTHING:
        body = CompletionRequest(prompt=[i or [0] for i in ids])
    else:
        body = decode_json(raw, CompletionRequest)
    top = most_listed(replies)
    if top is None or body.logprobs is None:
        shown = 0 if body.logprobs_detail and top is not None else top
        body = msgspec.structs.replace(body, logprobs=shown)
    return _replayable(body, asked, replies)


def _replayable(body: Body, asked: DerenderCommon, replies: Sequence[Generated]) -> Body:
    """The request without what only matters to an engine, for as many samples as there are."""
    samples = {len(reply.choices) for reply in replies}
    if len(samples) != 1 or samples == {0}:
        raise InvalidRequest("Every reply must have the same number of choices.", "choices")
    n = samples.pop()
    detail = all(has_detail(reply) for reply in replies)
    return msgspec.structs.replace(
        body,
        model=None,
        n=n,
        temperature=1.0 if n > 1 else body.temperature,
        stream=bool(asked.stream),
        stream_options=None,
        stream_interval=None,
        prompt_logprobs=None,
        logprobs_detail=bool(body.logprobs_detail) and detail,
    )


def _front(front: FrontContext, outputs: Sequence[Sequence[EngineOutput]]) -> FrontContext:
    """The front with another engine, whose work is not counted."""
    settings = msgspec.structs.replace(
        front.config.front, enable_force_include_usage=False, enable_prompt_tokens_details=False
    )
    model = msgspec.structs.replace(front.config.model, return_sampling_mask=False, max_logprobs=-1)
    ready = engine_ready(front)
    return dataclasses.replace(
        front,
        config=msgspec.structs.replace(front.config, front=settings, model=model),
        client=ReplayClient(ready, outputs),
        metrics=_uncounted(front.metrics.model_name, ready.max_model_len),
    )


@lru_cache(maxsize=4)
def _uncounted(model_name: str, max_model_len: int) -> FrontMetrics:
    """Metrics nobody reads."""
    return FrontMetrics(model_name, max_model_len, log_stats=False)


def _with_prompts(job: GenerationJob, ids: Sequence[list[int] | None]) -> GenerationJob:
    """The job with the prompts' real ids, where they are known: text goes on after them."""
    prompts = [
        dataclasses.replace(prompt, token_ids=list(given)) if given else prompt
        for prompt, given in zip(job.prompts, ids, strict=True)
    ]
    return dataclasses.replace(job, prompts=prompts)


def _finish(
    answer: dict[str, Any], prefix: str, replies: Sequence[Generated], counts: list[int] | None
) -> None:
    """Id, time and prompt length are those of the replies."""
    answer["id"] = id_of(replies[0], prefix)
    if replies[0].created is not None:
        answer["created"] = replies[0].created
    if counts is None:
        counts = [int((reply.usage or {}).get("prompt_tokens") or 0) for reply in replies]
    usage = answer["usage"]
    usage["prompt_tokens"] = sum(counts)
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
