"""From a request body to a `GenerationJob`: what completions and chat do alike."""

import asyncio
import time
import uuid

from sanic import Request

from ortloom.errors import (
    CapacityError,
    ContextLengthExceeded,
    EngineDead,
    InvalidRequest,
    ModelNotFound,
    UnsupportedParameter,
)
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import EngineReady
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.context import FrontContext
from ortloom.server.openai.generation import GenerationJob, PromptJob
from ortloom.server.openai.lengths import OutputLimit, truncate
from ortloom.server.openai.output_log import output_log
from ortloom.server.openai.request_log import log_request
from ortloom.server.openai.request_timing import RequestTiming
from ortloom.server.openai.sampling import SamplingContext, beam_options, for_sample, validated
from ortloom.server.openai.wire_common import GenerationRequest
from ortloom.server.request_id import LONGEST_REQUEST_ID, given_request_id
from ortloom.server.tracing import RequestTrace, warn_of_untraced

_INLINE_CHARACTERS = 2048
"""Longer texts are tokenised in a thread, so other requests are not held up."""

_MAX_SALT = 128


def check_model(name: str | None, front: FrontContext) -> None:
    """Refuse names that are not served; none or an empty one means the base model.

    Raises:
        ModelNotFound: naming it.
    """
    known = front.config.front.any_model_name or name in front.served_names
    if name and not known:
        raise ModelNotFound(f"The model `{name}` does not exist.", "model")


def engine_ready(front: FrontContext) -> EngineReady:
    """The engine's facts.

    Raises:
        EngineDead: it is gone.
        CapacityError: it is still starting.
    """
    ready = front.client.ready
    if ready is None:
        if front.client.dead is not None:
            raise EngineDead("The engine is not running.")
        raise CapacityError("The engine is still starting.")
    return ready


def tokenizer_of(front: FrontContext) -> Tokenizer:
    """The tokenizer.

    Raises:
        UnsupportedParameter: the server runs without one.
    """
    if front.tokenizer is None:
        raise UnsupportedParameter("This server has no tokenizer; send token ids.", "prompt")
    return front.tokenizer


async def encode(
    text: str, add_special_tokens: bool, front: FrontContext, *, limited: bool = False
) -> list[int]:
    """Token ids of a text, long ones off the event loop and one at a time.

    Args:
        text: what to encode.
        add_special_tokens: let the tokenizer add its own.
        front: tokenizer and context.
        limited: refuse at once a text that cannot fit into the context.

    Raises:
        ContextLengthExceeded: it cannot fit.
        UnsupportedParameter: the server runs without a tokenizer.
    """
    tokenizer = tokenizer_of(front)
    if len(text) <= _INLINE_CHARACTERS:
        return tokenizer.encode(text, add_special_tokens)
    if limited and tokenizer.surely_longer(text, most := engine_ready(front).max_model_len):
        raise ContextLengthExceeded(
            f"The maximum context length is {most} tokens, but the prompt has {len(text)} "
            "characters, which are more than that many tokens.",
            "input_tokens",
        )
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(front.long_texts, tokenizer.encode, text, add_special_tokens)


async def decode(token_ids: list[int], front: FrontContext) -> str:
    """Text of token ids, special tokens included; long lists off the event loop."""
    tokenizer = tokenizer_of(front)
    if len(token_ids) <= _INLINE_CHARACTERS:
        return tokenizer.decode(token_ids, False)
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(front.long_texts, tokenizer.decode, token_ids, False)


def sampling_context(front: FrontContext) -> SamplingContext:
    """What `sampling_params` needs to know."""
    return SamplingContext(
        config=front.config,
        architecture=front.manifest.architecture,
        defaults=front.defaults,
        tokenizer=front.tokenizer,
        vocab_size=engine_ready(front).vocab_size,
    )


def output_limit(
    requested: int | None, default: int | None, front: FrontContext, *, prompt_only: bool = False
) -> OutputLimit:
    """The output limit of a request, with the server's own ceilings."""
    return OutputLimit(
        requested=requested,
        default=default,
        ceilings=(front.defaults.max_new_tokens, front.config.front.max_new_tokens),
        max_model_len=engine_ready(front).max_model_len,
        prompt_only=prompt_only,
    )


def prompt_job(
    token_ids: list[int],
    text: str | None,
    body: GenerationRequest,
    limit: OutputLimit,
    params: SamplingParams,
    context: SamplingContext,
) -> PromptJob:
    """One checked prompt.

    Raises:
        InvalidRequest: empty, an id outside the vocabulary, or min_tokens above what may come.
        ContextLengthExceeded: no room in the context.
    """
    check_token_ids(token_ids, context.vocab_size)
    limit.check()
    kept = truncate(token_ids, body.truncate_prompt_tokens, body.truncation_side, limit)
    if not kept:
        raise InvalidRequest("The prompt must not be empty.", "prompt")
    max_tokens = limit.resolve(len(kept))
    validated(for_sample(params, max_tokens, 0), context)
    return PromptJob(token_ids=kept, text=text, max_tokens=max_tokens)


def check_token_ids(token_ids: list[int], vocab_size: int) -> None:
    """Refuse ids the model has no embedding for.

    Raises:
        InvalidRequest: naming the id.
    """
    largest = max(token_ids, default=0)
    if largest >= vocab_size:
        raise InvalidRequest(
            f"Token id {largest} is outside the vocabulary of {vocab_size}.", "prompt"
        )


def response_id(prefix: str, request: Request, body_id: str | None) -> str:
    """The response's id: the header's, else the body's, else a random one, after a prefix.

    Raises:
        InvalidRequest: the body's is too long.
    """
    if body_id is not None and len(body_id) > LONGEST_REQUEST_ID:
        raise InvalidRequest(
            f"request_id must have at most {LONGEST_REQUEST_ID} characters.", "request_id"
        )
    given = given_request_id(request) or body_id or uuid.uuid4().hex
    return f"{prefix}-{given}"


def make_job(
    response: str,
    prompts: list[PromptJob],
    params: SamplingParams,
    body: GenerationRequest,
    request: Request,
    front: FrontContext,
) -> GenerationJob:
    """Put a job together.

    Raises:
        InvalidRequest: too many samples in all, or a bad cache_salt.
    """
    most = front.config.front.max_n
    if len(prompts) * params.n > most:
        raise InvalidRequest(f"n times the number of prompts must be at most {most}.")
    arrival = time.monotonic()
    job = GenerationJob(
        response_id=response,
        prompts=prompts,
        params=params,
        n=params.n,
        priority=_priority(request, body),
        cache_salt=_cache_salt(body.cache_salt),
        arrival=arrival,
        beams=beam_options(body, params),
        at_once=_at_once(len(prompts) * params.n, front),
        outputs=output_log(response, bool(body.stream), front.config.log),
        timing=RequestTiming(arrival) if front.config.metrics.per_request else None,
        trace=_trace(response, prompts, params, request, front),
    )
    log_request(job, front.config.log)
    return job


def _trace(
    response: str,
    prompts: list[PromptJob],
    params: SamplingParams,
    request: Request,
    front: FrontContext,
) -> RequestTrace | None:
    if front.tracer is None:
        warn_of_untraced(request)
        return None
    lengths = [len(prompt.token_ids) for prompt in prompts]
    shown = for_sample(params, max(prompt.max_tokens for prompt in prompts), 0)
    return front.tracer.trace(request, response, shown, lengths, params.n)


def _at_once(samples: int, front: FrontContext) -> int | None:
    """Samples of one request that are in the engine at a time: one that needs several batches
    leaves a quarter of each to others. With admission limits all must be there at once, for a
    request that is above them is refused as a whole."""
    sched = front.config.scheduler
    if sched.max_num_queued_reqs is not None or sched.max_num_queued_tokens is not None:
        return None
    return None if samples <= sched.max_num_seqs else sched.max_num_seqs - sched.max_num_seqs // 4


def _priority(request: Request, body: GenerationRequest) -> int:
    """The header's value if it is an integer, else the body's."""
    try:
        value = int(request.headers.getone("x-vllm-priority", ""))
    except ValueError:
        return body.priority or 0
    return value if -(2**63) <= value < 2**63 else body.priority or 0


def _cache_salt(salt: str | None) -> str | None:
    if salt is None:
        return None
    if not salt or len(salt) > _MAX_SALT or any(c in salt for c in "@/\\\0"):
        raise InvalidRequest(
            f"cache_salt must have 1 to {_MAX_SALT} characters and no '@', slash or NUL.",
            "cache_salt",
        )
    return salt
