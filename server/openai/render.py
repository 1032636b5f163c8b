"""The generate request that a completion or chat request would send, without sending it."""

import json
from typing import Any

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput
from ortloom.server.context import FrontContext
from ortloom.server.openai.generation import GenerationJob, PromptJob
from ortloom.server.openai.wire_common import GenerationRequest

_DELTA, _FINAL = 1, 2
"""Output kinds: every step, or the end alone."""

_OMITTED_AT_DEFAULT = (
    "top_k",
    "seed",
    "n",
    "min_tokens",
    "ignore_eos",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "logprobs_detail",
    "logit_bias",
    "allowed_token_ids",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "spaces_between_special_tokens",
)
"""Sampling parameters that are written only where they are not the default."""


_AS_GIVEN = (
    "repetition_detection",
    "thinking_token_budget",
    "vllm_xargs",
    "logits_processors",
)
"""Fields of a body that go on as they came."""


def rendered(job: GenerationJob, body: GenerationRequest, front: FrontContext) -> list[Any]:
    """One generate request a prompt, in the order of the prompts.

    Args:
        job: made of the body.
        body: as it came.
        front: names the model.

    Raises:
        UnsupportedParameter: beam search, which no generate request can ask for.
    """
    if body.use_beam_search:
        raise UnsupportedParameter("Beam search cannot be rendered.", "use_beam_search")
    return [_request(job, prompt, body, front) for prompt in job.prompts]


def _request(
    job: GenerationJob, prompt: PromptJob, body: GenerationRequest, front: FrontContext
) -> dict[str, Any]:
    options = body.stream_options
    stream_options = None
    if options is not None:
        stream_options = {
            "include_usage": bool(options.include_usage),
            "continuous_usage_stats": bool(options.continuous_usage_stats),
        }
    return {
        "request_id": job.response_id,
        "token_ids": prompt.token_ids,
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": _sampling(job, prompt, body),
        "model": body.model or front.served_names[0],
        "reasoning_ended": _reasoning_ended(job.params, front),
        "reasoning_parser_kwargs": None,
        "return_token_ids": body.return_token_ids,
        "output_mode": "tokens",
        "stream": bool(body.stream),
        "stream_options": stream_options,
        "cache_salt": job.cache_salt,
        "priority": job.priority,
        "kv_transfer_params": body.kv_transfer_params,
        "ec_transfer_params": body.ec_transfer_params,
    }


def _reasoning_ended(params: SamplingParams, front: FrontContext) -> bool | None:
    """Whether a constraint holds from the first token; None = as the prompt says."""
    if params.structured_output is None or front.parsers.markers is None:
        return None
    if params.thinking is None:
        return True
    return False if params.thinking.open else None


def _sampling(job: GenerationJob, prompt: PromptJob, body: GenerationRequest) -> dict[str, Any]:
    params = job.params
    members: dict[str, Any] = {
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "repetition_penalty": params.repetition_penalty,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "stop": params.stop,
        "stop_token_ids": params.stop_token_ids,
        "max_tokens": prompt.max_tokens,
        "output_kind": _DELTA if body.stream else _FINAL,
        "skip_clone": True,
        "bad_words": body.bad_words or [],
        "skip_reading_prefix_cache": params.prompt_logprobs is not None,
    }
    neutral = SamplingParams()
    for name in _OMITTED_AT_DEFAULT:
        value = getattr(params, name)
        if value != getattr(neutral, name):
            members[name] = value
    for name in _AS_GIVEN:
        value = getattr(body, name, None)
        if value is not None:
            members[name] = value
    if params.structured_output is not None:
        members["structured_outputs"] = _constraint(params.structured_output)
    return members


def _constraint(constraint: StructuredOutput) -> dict[str, Any]:
    """A constraint as a request writes it."""
    value: Any = constraint.value
    if constraint.kind == "json_object":
        value = True
    elif constraint.kind in ("json", "choice", "structural_tag"):
        value = _parsed(constraint)
    members: dict[str, Any] = {constraint.kind: value}
    if constraint.whitespace_pattern is not None:
        members["whitespace_pattern"] = constraint.whitespace_pattern
    for name in ("disable_any_whitespace", "disable_additional_properties"):
        if getattr(constraint, name):
            members[name] = True
    return members


def _parsed(constraint: StructuredOutput) -> Any:
    """The JSON value of a constraint; one that came as text was checked by nobody yet."""
    try:
        return json.loads(constraint.value)
    except ValueError as error:
        what = f"structured_outputs.{constraint.kind} is not valid JSON: {error}."
        raise InvalidRequest(what, "structured_outputs") from None
