"""POST /inference/v1/generate: token ids to a job, and its samples to a reply or a stream."""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, SchemaViolation
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import SamplingMask
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.context import FrontContext
from ortloom.server.openai.generate_logprobs import GenerateLogprobs
from ortloom.server.openai.generation import GenerationJob, generate
from ortloom.server.openai.logprobs import ChatLogprobs, TokenNames, prompt_logprobs
from ortloom.server.openai.reply import ReplyHead, StreamUsage, json_response
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.sampling import sampling_params
from ortloom.server.openai.shortcut import EventSink
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced
from ortloom.server.openai.thinking import thinking_budget, thinking_of
from ortloom.server.openai.to_engine import (
    check_model,
    engine_ready,
    make_job,
    output_limit,
    prompt_job,
    response_id,
    sampling_context,
    tokenizer_of,
)
from ortloom.server.openai.usage import UsageCounter
from ortloom.server.openai.wire_generate import GenerateRequest, GenerateSampling
from ortloom.server.sse import SseWriter

WEIGHT_VERSION = "default"
"""The weights a server was started with; nothing changes them while it runs."""


@dataclass(slots=True)
class TokensJob:
    """One request on its way.

    Attributes:
        sampling: its sampling parameters, with the members that stand outside of them.
        logprobs: builds logprobs, None = not asked for.
        masks: print sampling masks.
    """

    body: GenerateRequest
    sampling: GenerateSampling
    front: FrontContext
    job: GenerationJob
    usage: UsageCounter
    logprobs: GenerateLogprobs | ChatLogprobs | None
    masks: bool

    @property
    def text(self) -> bool:
        """Decoded text is wanted."""
        return self.body.output_mode == "text"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What follows the text, where anybody needs it."""
        return self.front.tokenizer if self.text or self.job.params.stop else None


def prepare(body: GenerateRequest, request: Request, front: FrontContext) -> TokensJob:
    """Check a body and make its job.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(body.model, front)
    if min(body.token_ids) < 0:
        raise SchemaViolation("1 validation error: token_ids has a negative id.", "body.token_ids")
    _check_media(body)
    text = body.output_mode == "text"
    sampling = _sampling(body)
    _check_form(body, sampling, front)
    if text:
        tokenizer_of(front)
    context = sampling_context(front)
    model = front.config.model
    try:
        params = sampling_params(sampling, context, sampling.logprobs, sampling.prompt_logprobs)
    except SchemaViolation as error:
        error.param = (error.param or "").replace("body.", "body.sampling_params.", 1) or None
        raise
    if model.return_sampling_mask:
        params = msgspec.structs.replace(params, sampling_mask=True)
    params = _with_thinking(params, body, sampling, front)
    limit = output_limit(sampling.max_tokens, None, front)
    try:
        only = prompt_job(body.token_ids, None, sampling, limit, params, context)
    except InvalidRequest as error:
        if error.param == "prompt":
            error.param = None
        raise
    job = make_job(
        response_id("generate-tokens", request, body.request_id),
        [only],
        params,
        sampling,
        request,
        front,
    )
    return TokensJob(
        body=body,
        sampling=sampling,
        front=front,
        job=job,
        usage=UsageCounter(job, front.config.front.enable_prompt_tokens_details),
        logprobs=_logprobs(body, sampling, front),
        masks=model.return_sampling_mask or bool(sampling.logprobs_detail),
    )


def _with_thinking(
    params: SamplingParams, body: GenerateRequest, sampling: GenerateSampling, front: FrontContext
) -> SamplingParams:
    """The parameters with the reasoning that a constraint or budget has to wait for or to end."""
    budget = thinking_budget(sampling, None, front)
    constrained = params.structured_output is not None
    if not (constrained or budget is not None) or body.reasoning_ended:
        return params
    thinking = thinking_of(front, None, budget, constrained=constrained)
    if thinking is not None and body.reasoning_ended is False:
        thinking = msgspec.structs.replace(thinking, open=True)
    return msgspec.structs.replace(params, thinking=thinking)


def _check_media(body: GenerateRequest) -> None:
    if body.content_parts and body.features:
        raise InvalidRequest("content_parts and features cannot both be given.", "content_parts")
    for part in body.content_parts or ():
        raise InvalidRequest(
            f"This model takes text only: a content part of type {part.get('type')!r} cannot be "
            "given.",
            "content_parts",
        )
    if body.features is not None:
        raise InvalidRequest("This model takes text only, so it takes no features.", "features")


def _sampling(body: GenerateRequest) -> GenerateSampling:
    """The sampling parameters, with the members of the base taken from where they count."""
    given = body.sampling_params
    detail = bool(body.logprobs_detail or given.logprobs_detail)
    logprobs = given.logprobs
    if logprobs is None and (detail or body.return_token_logprobs):
        logprobs = 0
    return msgspec.structs.replace(
        given,
        model=None,
        echo=None,
        use_beam_search=None,  # one stream of tokens a choice, as the engine draws them
        truncate_prompt_tokens=None,
        response_format=None,
        stream=body.stream,
        stream_options=body.stream_options,
        priority=body.priority,
        cache_salt=body.cache_salt,
        logprobs=logprobs,
        logprobs_detail=detail,
    )


def _check_form(body: GenerateRequest, sampling: GenerateSampling, front: FrontContext) -> None:
    """Rules between the fields of this route."""
    text = body.output_mode == "text"
    if sampling.detokenize is False:
        if text:
            raise InvalidRequest("output_mode text needs detokenize.", "output_mode")
        if sampling.stop:
            raise InvalidRequest("stop strings need detokenize.", "stop")
    if sampling.stop and front.tokenizer is None:
        raise InvalidRequest("This server has no tokenizer, so it takes no stop strings.", "stop")
    if sampling.max_tokens is not None and sampling.max_tokens < 1:
        raise InvalidRequest(
            f"max_tokens must be at least 1, got {sampling.max_tokens}.", "max_tokens"
        )
    most = engine_ready(front).max_num_seqs
    if sampling.n is not None and sampling.n > most:
        raise InvalidRequest(f"n must be at most {most} here, got {sampling.n}.", "n")
    if body.return_token_logprobs:
        if body.stream or text:
            raise InvalidRequest(
                "return_token_logprobs is for whole replies in output_mode tokens.",
                "return_token_logprobs",
            )
        if not front.config.model.logprobs_mode.endswith("logprobs"):
            raise InvalidRequest(
                "return_token_logprobs needs a server whose --logprobs-mode is one of logprobs.",
                "return_token_logprobs",
            )
    if body.return_top_k_logprobs:
        if text:
            raise InvalidRequest(
                "return_top_k_logprobs is for output_mode tokens.", "return_top_k_logprobs"
            )
        if not sampling.logprobs or sampling.logprob_token_ids is not None:
            raise InvalidRequest(
                "return_top_k_logprobs needs logprobs of at least 1 and no logprob_token_ids.",
                "return_top_k_logprobs",
            )


def _logprobs(
    body: GenerateRequest, sampling: GenerateSampling, front: FrontContext
) -> GenerateLogprobs | ChatLogprobs | None:
    top = sampling.logprobs
    if top is None:
        return None
    keep_all = sampling.logprob_token_ids is not None
    if body.output_mode == "text":
        names = TokenNames(front.tokenizer, front.config.front.return_tokens_as_token_ids)
        return ChatLogprobs(names, top, keep_all)
    return GenerateLogprobs(
        top,
        keep_all=keep_all,
        sampled=bool(body.return_token_logprobs),
        packed=bool(body.return_top_k_logprobs),
        listed=not (body.return_token_logprobs and top == 0 and not sampling.logprobs_detail),
    )


async def answer(work: TokensJob) -> HTTPResponse:
    """The whole reply."""
    front = work.front
    samples = [Sample(i) for i in range(work.job.n)]
    working = generate(work.job, front.client, work.tokenizer, front.metrics)
    async with aclosing(working) as pieces:
        async for piece in pieces:
            samples[piece.index].add(piece)
    for sample in samples:
        work.usage.add_sample(sample)
    head = ReplyHead(work.job.response_id, "", front).members
    scored = samples[0].prompt_logprobs
    ids = work.job.prompts[0].token_ids
    body = {
        "request_id": head["id"],
        "model": head["model"],
        "created": head["created"],
        "usage": work.usage.whole(),
        "prompt_logprobs": None if scored is None else prompt_logprobs(scored, front.tokenizer),
        "prompt_token_id_logprobs": None,
        "prompt_token_ids": ids if work.body.return_token_ids else None,
        "mm_placeholders": None,
        "metrics": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "output_mode": work.body.output_mode or "tokens",
        "choices": [_whole_choice(work, sample) for sample in samples],
    }
    return json_response(body)


def _whole_choice(work: TokensJob, sample: Sample) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": sample.index,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "token_ids": sample.token_ids,
        "routed_experts": None,
        "sampling_mask": _masks(work, sample.masks),
        "weight_versions": _weight_versions(len(sample.token_ids)),
        "logprobs": None,
    }
    if work.text:
        choice["text"] = "".join(sample.text)
    if work.logprobs is not None:
        choice["logprobs"] = work.logprobs.build(sample.logprobs, sample.details)
    return choice


def _weight_versions(num_tokens: int) -> list[dict[str, Any]]:
    """Which weights made which output tokens."""
    return [{"version": WEIGHT_VERSION, "start": 0, "end": num_tokens}]


def _masks(work: TokensJob, masks: list[SamplingMask]) -> list[SamplingMask] | None:
    """Masks as they are printed: a server that returns them for every request lists all ids."""
    if not work.masks:
        return None
    if not work.front.config.model.return_sampling_mask:
        return masks
    whole = list(range(engine_ready(work.front).vocab_size)) if None in masks else []
    return [whole if mask is None else mask for mask in masks]


async def stream(work: TokensJob, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    front = work.front
    chunks = _Chunks(work)
    spacing = Spacing(interval_of(front, work.body.stream_interval))
    sse = SseWriter(request)
    sink = EventSink(sse, spacing, lambda piece: [chunks.chunk(piece)])
    working = generate(work.job, front.client, work.tokenizer, front.metrics, sink)
    pieces = spaced(working, spacing)
    async with sse, aclosing(pieces):
        async for piece in pieces:
            await sse.send(chunks.chunk(piece))
            sink.begin()
        if chunks.usage.last:
            await sse.send(chunks.last())


class _Chunks:
    """Makes the events of one stream; remembers how many tokens each choice has."""

    def __init__(self, work: TokensJob) -> None:
        self._work = work
        self._counts: dict[int, int] = {}
        self.usage = StreamUsage(work.sampling, False)

    def _event(self, usage: dict[str, Any] | None, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "request_id": self._work.job.response_id,
            "usage": usage,
            "output_mode": self._work.body.output_mode or "tokens",
            "choices": choices,
        }

    def chunk(self, piece: Piece) -> bytes:
        """The event of one piece."""
        work = self._work
        work.usage.add(piece)
        first = not self._counts
        count = self._counts.get(piece.index, 0) + len(piece.token_ids)
        self._counts[piece.index] = count
        done = piece.finish_reason is not None
        choice: dict[str, Any] = {
            "index": piece.index,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "token_ids": piece.token_ids,
            "routed_experts": None,
            "sampling_mask": _masks(work, piece.masks),
            "weight_versions": _weight_versions(count) if done else None,
            "logprobs": None,
        }
        if work.text:
            choice["text"] = piece.text
        if work.logprobs is not None:
            choice["logprobs"] = work.logprobs.build(piece.logprobs, piece.details)
        event = self._event(work.usage.running() if self.usage.every else None, [choice])
        if first and work.body.return_token_ids:
            event["prompt_token_ids"] = work.job.prompts[0].token_ids
            event["mm_placeholders"] = None
        return msgspec.json.encode(event)

    def last(self) -> bytes:
        """The usage event."""
        return msgspec.json.encode(self._event(self._work.usage.last_chunk(), []))
