"""Bodies of POST /inference/v1/generate: tokens in, tokens out."""

from typing import Annotated, Any, Literal

import msgspec

from ortloom.server.openai.wire_common import GenerationRequest, Int64, StreamOptions


class GenerateSampling(GenerationRequest, kw_only=True):
    """`sampling_params`: the engine's own set.

    Members of the base that are not sampling parameters (stream, echo, ...) count only outside.
    `output_kind`, `skip_clone`, `flat_logprobs` and `extra_args` are written by renderers and
    change nothing.
    """

    logprobs: int | None = None
    detokenize: bool | None = None
    skip_reading_prefix_cache: bool | None = None
    output_kind: int | None = None
    skip_clone: bool | None = None
    flat_logprobs: bool | None = None
    extra_args: dict[str, Any] | None = None


class ReasoningParserKwargs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What the prompt was rendered with, as far as a reasoning parser must know."""

    chat_template_kwargs: dict[str, Any] | None = None


class GenerateRequest(msgspec.Struct, kw_only=True):
    """Token ids to go on from."""

    token_ids: Annotated[list[int], msgspec.Meta(min_length=1)]
    sampling_params: GenerateSampling
    request_id: str | None = None
    model: str | None = None
    token_offsets: list[tuple[int, int]] | None = None
    content_parts: list[dict[str, Any]] | None = None
    features: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens", "text"] | None = None
    return_token_logprobs: bool | None = None
    return_top_k_logprobs: bool | None = None
    logprobs_detail: bool | None = None
    reasoning_ended: bool | None = None
    reasoning_parser_kwargs: ReasoningParserKwargs | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: Annotated[int, msgspec.Meta(ge=1)] | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    priority: Int64 | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
