"""The body of POST /v1/responses.

Wrong types are refused and unknown fields ignored, as on the other routes. Input items, tools and
`tool_choice` are unions over `type`; `items` and `tools` tell them apart.
"""

from typing import Annotated, Any, Literal

import msgspec

from ortloom.server.openai.wire_chat import ReasoningEffort
from ortloom.server.openai.wire_common import (
    ExtraArguments,
    GenerationRequest,
    Int64,
    StructuredOutputs,
)

Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
"""Values of `include`; only the logprobs exist here, the others never apply."""

LOGPROBS = "message.output_text.logprobs"

NotNegative = Annotated[int, msgspec.Meta(ge=0)]


class Reasoning(msgspec.Struct, kw_only=True):
    """`reasoning`."""

    effort: ReasoningEffort | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class TextFormat(msgspec.Struct, kw_only=True):
    """`text.format`; the members beside `type` belong to `json_schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    schema: Any = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, kw_only=True):
    """`text`."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesRequest(msgspec.Struct, kw_only=True):
    """All fields; null counts as "not given" where a default exists."""

    input: str | list[Any]
    model: str | None = None
    instructions: str | None = None
    background: bool | None = None
    include: list[Includable] | None = None
    max_output_tokens: int | None = None
    max_tool_calls: NotNegative | None = None
    metadata: dict[str, str] | None = None
    parallel_tool_calls: bool | None = None
    previous_response_id: str | None = None
    prompt: Any = None
    prompt_cache_key: str | None = None
    reasoning: Reasoning | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    store: bool | None = None
    stream: bool | None = None
    temperature: float | None = None
    text: TextConfig | None = None
    tool_choice: str | dict[str, Any] | None = None
    tools: list[Any] | None = None
    top_logprobs: int | None = None
    top_p: float | None = None
    truncation: Literal["auto", "disabled"] | None = None
    user: str | None = None
    # beyond OpenAI's
    top_k: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    logprobs_detail: bool | None = None
    structured_outputs: StructuredOutputs | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    include_reasoning: bool | None = None
    enable_response_messages: bool | None = None
    previous_input_messages: list[Any] | None = None
    request_id: str | None = None
    session_id: str | None = None
    priority: Int64 | None = None
    cache_salt: str | None = None
    vllm_xargs: ExtraArguments | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @property
    def wants_logprobs(self) -> bool:
        """Whether `include` names the logprobs of the output text."""
        return LOGPROBS in (self.include or ())


def generation_fields(body: ResponsesRequest) -> GenerationRequest:
    """The fields that the other generation routes have too, under their names there."""
    return GenerationRequest(
        model=body.model,
        max_tokens=body.max_output_tokens,
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        repetition_penalty=body.repetition_penalty,
        logit_bias=body.logit_bias,
        seed=body.seed,
        stop=body.stop,
        ignore_eos=body.ignore_eos,
        skip_special_tokens=body.skip_special_tokens,
        include_stop_str_in_output=body.include_stop_str_in_output,
        logprobs_detail=body.logprobs_detail,
        structured_outputs=body.structured_outputs,
        truncate_prompt_tokens=-1 if body.truncation == "auto" else None,
        stream=body.stream,
        priority=body.priority,
        request_id=body.request_id,
        session_id=body.session_id,
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
        ec_transfer_params=body.ec_transfer_params,
        vllm_xargs=body.vllm_xargs,
    )
