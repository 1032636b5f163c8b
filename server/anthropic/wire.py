"""Bodies of POST /v1/messages and POST /v1/messages/count_tokens.

A wrong type in any known field is refused with the field's path. Unknown fields
(`cache_control`, `citations`, beta features) are ignored.
"""

from typing import Annotated, Any, Literal

import msgspec

from ortloom.server.openai.wire_common import ExtraArguments, Positive

Name = Annotated[str, msgspec.Meta(min_length=1)]


class ContentBlock(msgspec.Struct, kw_only=True):
    """One block of a message, or of `system`; which members count depends on `type`."""

    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    ]
    text: str | None = None
    source: dict[str, Any] | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    content: str | list[dict[str, Any]] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class InputMessage(msgspec.Struct, kw_only=True):
    """One turn."""

    role: Literal["user", "assistant", "system"]
    content: str | list[ContentBlock]


class MessagesTool(msgspec.Struct, kw_only=True):
    """`tools[]`; only tools that the client runs, so all have a schema."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class MessagesToolChoice(msgspec.Struct, kw_only=True):
    """`tool_choice`; `name` is needed with type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct, kw_only=True):
    """`output_config.format`."""

    type: Literal["json_schema"] = "json_schema"
    schema: dict[str, Any] | None = None


class OutputConfig(msgspec.Struct, kw_only=True):
    """`output_config`: how hard to think, and the form of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class Thinking(msgspec.Struct, kw_only=True):
    """`thinking`. Type `disabled` switches it off, `enabled` takes `budget_tokens`; other types
    leave it to the model."""

    type: str
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None


class CountTokensRequest(msgspec.Struct, kw_only=True):
    """What decides the prompt; both routes share it, so both count the same tokens."""

    model: Name
    messages: list[InputMessage]
    system: str | list[ContentBlock] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """Fields on top of those that decide the prompt."""

    max_tokens: Positive
    metadata: dict[str, Any] | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    logprobs_detail: bool | None = None
    cache_salt: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: ExtraArguments | None = None
