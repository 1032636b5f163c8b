"""Request fields that the completion and the chat route share.

A wrong type in any known field is refused with the field's path; numbers and booleans may also be
written as text (`limits`). Unknown fields are ignored. Null counts as "not given" where a default
exists.
"""

from typing import Annotated, Any, Literal

import msgspec

from ortloom.runtime.sampling_params import LogitsProcessorSpec, RepetitionDetection

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Scalar = str | bool | int | float
ExtraArguments = dict[str, Scalar | list[Scalar]]
"""`vllm_xargs`: scalars and lists of them."""


class StreamOptions(msgspec.Struct, kw_only=True):
    """`stream_options`; usage is sent where it is asked for by name."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class JsonSchemaFormat(msgspec.Struct, kw_only=True):
    """`response_format.json_schema`; `schema` is checked apart."""

    name: str | None = None
    description: str | None = None
    schema: Any = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, kw_only=True):
    """`response_format`; a structural tag has `format`, or `structures` and `triggers`."""

    type: str
    json_schema: JsonSchemaFormat | None = None
    format: Any = None
    structures: Any = None
    triggers: Any = None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """`structured_outputs`: exactly one constraint, plus options."""

    json: Any = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any = None
    disable_any_whitespace: bool | None = None
    disable_additional_properties: bool | None = None
    whitespace_pattern: str | None = None


class GenerationRequest(msgspec.Struct, kw_only=True):
    """The shared fields; names, types and defaults are vLLM's."""

    model: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    n: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    echo: bool | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logprobs_detail: bool | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    add_special_tokens: bool | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Positive | None = None
    priority: Int64 | None = None
    request_id: str | None = None
    session_id: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArguments | None = None
    repetition_detection: RepetitionDetection | None = None
    logits_processors: list[str | LogitsProcessorSpec] | None = None
    thinking_token_budget: int | None = None
