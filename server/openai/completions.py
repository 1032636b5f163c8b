"""POST /v1/completions: body to job, and the job's samples to a reply or a stream."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from sanic import HTTPResponse, Request

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.runtime.messages import TokenLogprobs
from ortloom.server.context import FrontContext
from ortloom.server.openai.detail import add_detail_lists, mask_member
from ortloom.server.openai.event_template import HOLE, event_template, to_json
from ortloom.server.openai.generation import GenerationJob, PromptJob, generate
from ortloom.server.openai.lengths import COMPLETION_MAX_TOKENS
from ortloom.server.openai.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from ortloom.server.openai.off_loop import built, entry_count
from ortloom.server.openai.prompts import Prompt, parse_prompts
from ortloom.server.openai.reply import ReplyHead, StreamUsage, json_response
from ortloom.server.openai.sample import Piece, Sample
from ortloom.server.openai.sampling import sampling_params
from ortloom.server.openai.shortcut import EventSink, PieceSink
from ortloom.server.openai.stream_interval import Spacing, interval_of, spaced
from ortloom.server.openai.thinking import thinking_budget, thinking_of
from ortloom.server.openai.to_engine import (
    check_model,
    encode,
    make_job,
    output_limit,
    prompt_job,
    response_id,
    sampling_context,
    tokenizer_of,
)
from ortloom.server.openai.usage import UsageCounter
from ortloom.server.openai.wire_completion import CompletionRequest
from ortloom.server.sse import SseWriter


@dataclass(slots=True)
class Completion:
    """One completion request on its way.

    Attributes:
        logprobs: builds logprobs, None = not asked for.
    """

    body: CompletionRequest
    front: FrontContext
    job: GenerationJob
    head: ReplyHead
    usage: UsageCounter
    logprobs: CompletionLogprobs | None

    def prompt_of(self, index: int) -> PromptJob:
        """The prompt of a choice."""
        return self.job.prompts[index // self.job.n]

    def pieces(self, sink: PieceSink | None = None) -> AsyncGenerator[Piece, None]:
        """The engine's work; see `generate`."""
        front = self.front
        return generate(self.job, front.client, front.tokenizer, front.metrics, sink)

    def echo_text(self, index: int) -> str:
        """The prompt as text, for echo."""
        prompt = self.prompt_of(index)
        if prompt.text is not None:
            return prompt.text
        tokenizer = tokenizer_of(self.front)
        return tokenizer.decode(prompt.token_ids, self.job.params.skip_special_tokens)


async def prepare(body: CompletionRequest, request: Request, front: FrontContext) -> Completion:
    """Check a body and make its job.

    Raises:
        RequestError: what is wrong, naming the field.
    """
    check_model(body.model, front)
    if body.prompt_embeds is not None:
        raise UnsupportedParameter(
            "prompt_embeds needs a server started with --enable-prompt-embeds.", "prompt_embeds"
        )
    if body.suffix:
        raise UnsupportedParameter("suffix is not supported.", "suffix")
    context = sampling_context(front)
    echo = bool(body.echo)
    top = 0 if body.logprobs is None and body.logprobs_detail else body.logprobs
    scored = top if echo and body.prompt_logprobs is None else body.prompt_logprobs
    params = sampling_params(body, context, top, scored)
    budget = thinking_budget(body, None, front)
    constrained = params.structured_output is not None
    if constrained or budget is not None:
        thinking = thinking_of(front, None, budget, constrained=constrained)
        params = msgspec.structs.replace(params, thinking=thinking)
    limit = output_limit(body.max_tokens, COMPLETION_MAX_TOKENS, front, prompt_only=echo)
    prompts = []
    for prompt in parse_prompts(body.prompt, front.config.front.max_prompts):
        ids, text = await _token_ids(prompt, body, front)
        made = prompt_job(ids, text, body, limit, params, context)
        cut = len(made.token_ids) != len(ids)
        prompts.append(PromptJob(made.token_ids, None, made.max_tokens) if cut else made)
    response = response_id("cmpl", request, body.request_id)
    job = make_job(response, prompts, params, body, request, front)
    names = TokenNames(front.tokenizer, _as_ids(body, front))
    keep_all = body.logprob_token_ids is not None
    return Completion(
        body=body,
        front=front,
        job=job,
        head=ReplyHead(response, "text_completion", front),
        usage=UsageCounter(job, front.config.front.enable_prompt_tokens_details),
        logprobs=None if top is None else CompletionLogprobs(names, top, keep_all),
    )


def _as_ids(body: CompletionRequest, front: FrontContext) -> bool:
    asked = body.return_tokens_as_token_ids
    return front.config.front.return_tokens_as_token_ids if asked is None else asked


async def _token_ids(
    prompt: Prompt, body: CompletionRequest, front: FrontContext
) -> tuple[list[int], str | None]:
    if isinstance(prompt, list):
        return prompt, None
    add = True if body.add_special_tokens is None else body.add_special_tokens
    whole = body.truncate_prompt_tokens is None
    ids = await encode(prompt, add, front, limited=whole)
    if not ids:
        raise InvalidRequest("The prompt must not be empty.", "prompt")
    return ids, prompt


async def answer(completion: Completion) -> HTTPResponse:
    """The whole reply."""
    job = completion.job
    samples = [Sample(i) for i in range(len(job.prompts) * job.n)]
    async with aclosing(completion.pieces()) as pieces:
        async for piece in pieces:
            samples[piece.index].add(piece)
    for sample in samples:
        completion.usage.add_sample(sample)
    choices = [
        await built(entry_count(s.logprobs, s.prompt_logprobs), _choice, completion, s)
        for s in samples
    ]
    body = {
        **completion.head.members,
        "choices": choices,
        "service_tier": None,
        "system_fingerprint": completion.head.fingerprint,
        "usage": completion.usage.whole(),
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "metrics": completion.job.metrics(),
    }
    return json_response(body)


def _choice(completion: Completion, sample: Sample) -> dict[str, Any]:
    body, prompt = completion.body, completion.prompt_of(sample.index)
    text = "".join(sample.text)
    token_ids = sample.token_ids
    positions: list[TokenLogprobs | None] = list(sample.logprobs)
    if body.echo:
        text = completion.echo_text(sample.index) + text
        token_ids = prompt.token_ids + token_ids
        positions = [*(sample.prompt_logprobs or ()), *positions]
    logprobs = None
    if completion.logprobs is not None:
        logprobs = completion.logprobs.build(token_ids, positions, 0)
        if body.logprobs_detail:
            add_detail_lists(logprobs, sample.details, len(positions) - len(sample.logprobs))
    listed = None
    if sample.prompt_logprobs is not None:
        listed = prompt_logprobs(sample.prompt_logprobs, completion.front.tokenizer)
    return {
        "index": sample.index,
        "text": text,
        "logprobs": logprobs,
        "finish_reason": sample.finish_reason,
        "stop_reason": sample.stop_reason,
        "token_ids": sample.token_ids if body.return_token_ids else None,
        "prompt_logprobs": listed,
        "prompt_token_ids": prompt.token_ids if body.return_token_ids else None,
        "routed_experts": None,
        **mask_member(body, sample.masks),
    }


async def stream(completion: Completion, request: Request) -> None:
    """The reply as events; errors before the first engine output are raised."""
    chunks = _Chunks(completion)
    spacing = Spacing(interval_of(completion.front, completion.body.stream_interval))
    sse = SseWriter(request)
    sink = EventSink(sse, spacing, lambda piece: [chunks.chunk(piece)])
    pieces = spaced(completion.pieces(sink), spacing)
    async with sse, aclosing(pieces):
        async for piece in pieces:
            entries = entry_count(piece.logprobs, piece.output.prompt_logprobs)
            await sse.send(await built(entries, chunks.chunk, piece))
            sink.begin()
        if chunks.usage.last:
            await sse.send(chunks.last())


class _Chunks:
    """Makes the events of one stream; remembers how much text each choice has sent."""

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        force = completion.front.config.front.enable_force_include_usage
        self.usage = StreamUsage(completion.body, force)
        self._sent: dict[int, int] = {}
        body = completion.body
        self._plain = not (body.return_token_ids or body.logprobs_detail)
        self._templates: dict[int, bytes] = {}

    def chunk(self, piece: Piece) -> bytes:
        """The event of one piece."""
        completion = self._completion
        completion.usage.add(piece)
        if self._plain and piece.finish_reason is None and piece.index in self._sent:
            return self._plain_event(piece)
        body, prompt = completion.body, completion.prompt_of(piece.index)
        first = piece.index not in self._sent
        offset = self._sent.get(piece.index, 0)
        text, token_ids = piece.text, piece.token_ids
        positions: list[TokenLogprobs | None] = list(piece.logprobs)
        if first and body.echo:
            text = completion.echo_text(piece.index) + text
            token_ids = prompt.token_ids + token_ids
            positions = [*(piece.output.prompt_logprobs or ()), *positions]
        self._sent[piece.index] = offset + len(text)
        logprobs = None
        if completion.logprobs is not None:
            logprobs = completion.logprobs.build(token_ids, positions, offset)
            if body.logprobs_detail:
                add_detail_lists(logprobs, piece.details, len(positions) - len(piece.logprobs))
        shows_prompt = first and (body.echo or body.return_token_ids)
        choice = {
            "index": piece.index,
            "text": text,
            "logprobs": logprobs,
            "finish_reason": piece.finish_reason,
            "stop_reason": piece.stop_reason,
            "prompt_token_ids": prompt.token_ids if shows_prompt else None,
            "token_ids": piece.token_ids if body.return_token_ids else None,
            **mask_member(body, piece.masks),
        }
        event: dict[str, Any] = {**completion.head.members, "choices": [choice]}
        if self.usage.every:
            event["usage"] = completion.usage.running()
        if piece.finish_reason is not None and not self.usage.last:
            event["system_fingerprint"] = completion.head.fingerprint
        return msgspec.json.encode(event)

    def _plain_event(self, piece: Piece) -> bytes:
        """The usual event, as `chunk` makes it the long way."""
        index = piece.index
        template = self._templates.get(index)
        if template is None:
            template = self._templates[index] = self._template(index)
        offset = self._sent[index]
        self._sent[index] = offset + len(piece.text)
        completion = self._completion
        values = [to_json(piece.text)]
        if completion.logprobs is not None:
            values.append(completion.logprobs.json(piece.token_ids, piece.logprobs, offset))
        if self.usage.every:
            values.append(to_json(completion.usage.running()))
        return template % tuple(values)

    def _template(self, index: int) -> bytes:
        choice = {
            "index": index,
            "text": HOLE,
            "logprobs": None if self._completion.logprobs is None else HOLE,
            "finish_reason": None,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }
        event: dict[str, Any] = {**self._completion.head.members, "choices": [choice]}
        if self.usage.every:
            event["usage"] = HOLE
        return event_template(event)

    def last(self) -> bytes:
        """The usage event."""
        completion = self._completion
        event: dict[str, Any] = {
            **completion.head.members,
            "choices": [],
            "usage": completion.usage.last_chunk(),
            "system_fingerprint": completion.head.fingerprint,
        }
        if completion.job.timing is not None:
            event["metrics"] = completion.job.metrics()
        return msgspec.json.encode(event)
