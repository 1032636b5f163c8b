"""Request fields to `SamplingParams`: defaults merged, ranges checked, text turned to token ids."""

import re
from dataclasses import dataclass
from typing import Any

import msgspec

from ortloom.config import Config
from ortloom.errors import InvalidRequest, SchemaViolation, UnsupportedParameter
from ortloom.models.generation_config import GenerationDefaults
from ortloom.models.manifest import Architecture
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.sampling_params import LogitsProcessorSpec, SamplingParams
from ortloom.server.openai.beam_search import BeamOptions
from ortloom.server.openai.structured import constraint_of
from ortloom.server.openai.wire_common import GenerationRequest

_NEUTRAL = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Knobs a generation config may give a default for, with their neutral values."""

ANSWERED_WITHOUT_PARAM = frozenset(
    {
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "min_tokens",
        "stop",
        "n",
        "allowed_token_ids",
        "stop_token_ids",
    }
)
"""Fields whose range errors name the field in the message only (recorded behaviour)."""

ENGINE_ANSWERED_WITHOUT_PARAM = ANSWERED_WITHOUT_PARAM | {"structured_outputs", "response_format"}
"""The same for refusals of the engine; a constraint it cannot compile is one."""

_MAX_LOGPROB_TOKEN_IDS = 128
_MAX_BAD_WORD = 512  # characters
_TOKEN_ID = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class SamplingContext:
    """What the front knows that decides sampling parameters.

    `vocab_size` is the number of logits columns; `tokenizer` None = no text in this front.
    """

    config: Config
    architecture: Architecture
    defaults: GenerationDefaults
    tokenizer: Tokenizer | None
    vocab_size: int


def check_stream(request: GenerationRequest) -> None:
    """Rules between `stream` and other fields.

    Raises:
        InvalidRequest: stream_options without stream, or prompt_logprobs with it.
    """
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("stream_options needs stream=true.", "stream_options")
    if request.stream and request.prompt_logprobs:
        raise InvalidRequest("prompt_logprobs cannot be streamed.", "prompt_logprobs")


def sampling_params(
    request: GenerationRequest,
    context: SamplingContext,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """Validated parameters; `max_tokens` is still open (it depends on the prompt).

    Args:
        request: the body.
        context: the front's facts.
        logprobs: top logprobs of output tokens; None = off.
        prompt_logprobs: the same for prompt tokens.

    Raises:
        InvalidRequest: a value is out of range; UnsupportedParameter, SchemaViolation alike.
    """
    check_stream(request)
    knobs: dict[str, Any] = dict(_NEUTRAL)
    if not request.use_beam_search:  # beams are ranked by the model's own probabilities
        knobs = {
            name: _first(getattr(request, name), getattr(context.defaults, name), neutral)
            for name, neutral in _NEUTRAL.items()
        }
    architecture = context.architecture
    params = SamplingParams(
        **knobs,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        logit_bias=_logit_bias(request.logit_bias),
        allowed_token_ids=request.allowed_token_ids,
        bad_words=_bad_words(request.bad_words, context),
        seed=None if request.seed == -1 else request.seed,
        n=_n(request.n, context.config.front.max_n),
        min_tokens=request.min_tokens or 0,
        ignore_eos=bool(request.ignore_eos),
        eos_token_ids=list(architecture.eos_token_ids),
        stop_token_ids=list(request.stop_token_ids or ()),
        secondary_eos_token_ids=list(context.defaults.secondary_eos_token_ids),
        stop=_stop(request.stop, context.config.front.max_stop_strings),
        include_stop_str_in_output=bool(request.include_stop_str_in_output),
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logprob_token_ids=_logprob_ids(request.logprob_token_ids),
        logprobs_detail=bool(request.logprobs_detail),
        sampling_mask=bool(request.logprobs_detail),
        structured_output=constraint_of(request.response_format, request.structured_outputs),
        trace_decode_token_ids=_trace(request.vllm_xargs),
        skip_special_tokens=request.skip_special_tokens is not False,
        spaces_between_special_tokens=request.spaces_between_special_tokens is not False,
        detokenize=context.tokenizer is not None,
        repetition_detection=request.repetition_detection,
        extra_args=request.vllm_xargs,
        logits_processors=_logits_processors(request.logits_processors, context.config),
    )
    if context.config.model.return_sampling_mask:
        check_replayable(params)
    return validated(params, context)


def check_replayable(params: SamplingParams) -> None:
    """What `--return-sampling-mask` asks of every request: a draw from a finite set.

    Raises:
        InvalidRequest: greedy, or no top_k.
    """
    if params.greedy:
        raise InvalidRequest(
            "This server returns sampling masks, so temperature must be above 0.", "temperature"
        )
    if params.top_k <= 0:
        raise InvalidRequest(
            "This server returns sampling masks, so top_k must be at least 1.", "top_k"
        )


def validated(params: SamplingParams, context: SamplingContext) -> SamplingParams:
    """`SamplingParams.validated`, with the error's `param` as the reference answers it."""
    try:
        return params.validated(context.vocab_size, context.config.model.max_logprobs)
    except InvalidRequest as error:
        if error.param in ANSWERED_WITHOUT_PARAM:
            error.param = None
        raise


def beam_options(request: GenerationRequest, params: SamplingParams) -> BeamOptions | None:
    """The beam search of a request that wants one; `n` is its width.

    Raises:
        InvalidRequest: a combination that cannot be, or a length penalty that is no number.
    """
    if not request.use_beam_search:
        return None
    if request.stream:
        raise InvalidRequest("Beam search cannot be streamed.", "stream")
    for name, given in (
        ("structured_outputs", params.structured_output),
        ("prompt_logprobs", params.prompt_logprobs),
        ("bad_words", params.bad_words or params.bad_words_token_ids),
        ("allowed_token_ids", params.allowed_token_ids),
        ("logit_bias", params.logit_bias),
        ("logits_processors", params.logits_processors),
    ):
        if given is not None:
            raise InvalidRequest(f"{name} cannot be combined with use_beam_search.", name)
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    if not -10.0 <= penalty <= 10.0:
        raise InvalidRequest(
            f"length_penalty must be between -10 and 10, got {penalty}.", "length_penalty"
        )
    return BeamOptions(params.n, penalty)


def for_sample(params: SamplingParams, max_tokens: int, index: int) -> SamplingParams:
    """The parameters of one of n samples after a prompt that allows `max_tokens`."""
    return msgspec.structs.replace(params, max_tokens=max_tokens, sample_index=index, n=1)


def _trace(arguments: dict[str, Any] | None) -> list[int] | None:
    """Output tokens to force (--enable-trace-replay); the engine says whether it may be done."""
    ids = (arguments or {}).get("trace_decode_token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not all(type(token) is int for token in ids):
        raise InvalidRequest(
            "vllm_xargs.trace_decode_token_ids must be a list of token ids.", "vllm_xargs"
        )
    return ids


def _first(*values: object) -> object:
    return next((v for v in values if v is not None), None)


def _n(n: int | None, max_n: int) -> int:
    if n is not None and n > max_n:
        raise InvalidRequest(f"n must be at most {max_n}, got {n}.")
    return 1 if n is None else n


def _stop(stop: str | list[str] | None, max_stop_strings: int) -> list[str]:
    listed = [stop] if isinstance(stop, str) else list(stop or ())
    if len(listed) > max_stop_strings:
        raise SchemaViolation(
            f"1 validation error: stop has {len(listed)} entries; at most {max_stop_strings} are "
            "allowed.",
            "body.stop",
        )
    return listed


def _logits_processors(
    given: list[str | LogitsProcessorSpec] | None, config: Config
) -> list[LogitsProcessorSpec] | None:
    if not given:
        return None
    if config.model.logits_processor_pattern is None:
        raise UnsupportedParameter(
            "logits_processors needs a server started with --logits-processor-pattern.",
            "logits_processors",
        )
    return [LogitsProcessorSpec(item) if isinstance(item, str) else item for item in given]


def _logit_bias(bias: dict[str, float] | None) -> dict[int, float] | None:
    if bias is None:
        return None
    converted: dict[int, float] = {}
    for key, value in bias.items():
        if _TOKEN_ID.fullmatch(key) is None:
            raise InvalidRequest(
                f"logit_bias has the key '{key[:40]}', which is not a token id.", "logit_bias"
            )
        converted[int(key)] = value
    return converted


def _logprob_ids(ids: list[int] | None) -> list[int] | None:
    if ids is not None and len(ids) > _MAX_LOGPROB_TOKEN_IDS:
        raise InvalidRequest(
            f"logprob_token_ids has {len(ids)} entries; at most {_MAX_LOGPROB_TOKEN_IDS} are "
            "allowed.",
            "logprob_token_ids",
        )
    return ids


def _bad_words(words: list[str] | None, context: SamplingContext) -> list[str] | None:
    """The words as they must not appear, wherever a line or a blank comes before them."""
    if not words:
        return None
    most = context.config.front.max_bad_words
    if len(words) > most:
        raise InvalidRequest(
            f"bad_words has {len(words)} entries; at most {most} are allowed.", "bad_words"
        )
    if context.tokenizer is None:
        raise UnsupportedParameter("bad_words needs a tokenizer.", "bad_words")
    bare = [word.lstrip() for word in words]
    for word in bare:
        if not word:
            raise InvalidRequest("bad_words cannot contain an empty string.", "bad_words")
        if len(word) > _MAX_BAD_WORD:
            raise InvalidRequest(
                f"bad_words has an entry of {len(word)} characters; at most {_MAX_BAD_WORD} are "
                "allowed.",
                "bad_words",
            )
        if not _is_unicode(word):
            raise InvalidRequest("bad_words has an entry that is not valid Unicode.", "bad_words")
    return list(dict.fromkeys(bare))


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
