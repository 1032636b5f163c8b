"""The body of POST /v1/chat/completions, and of the chat form of POST /tokenize."""

from typing import Any, Literal

import msgspec

from ortloom.server.openai.wire_common import GenerationRequest


class ChatMessage(msgspec.Struct, kw_only=True):
    """One message. Members a template cannot use are ignored."""

    role: str
    content: str | list[Any] | None = None
    name: Any = None
    tool_calls: list[Any] | None = None
    tool_call_id: Any = None
    reasoning: Any = None
    reasoning_content: Any = None


class FunctionDefinition(msgspec.Struct, kw_only=True):
    """`tools[].function`."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(msgspec.Struct, kw_only=True):
    """`tools[]`."""

    function: FunctionDefinition
    type: Literal["function"] = "function"


ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class TemplateFields(msgspec.Struct, kw_only=True):
    """What decides the prompt text; chat and /tokenize share it, so both give the same ids."""

    messages: list[ChatMessage]
    tools: list[Tool] | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: ReasoningEffort | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """Fields on top of the shared ones; those of `TemplateFields` are read apart."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    return_prompt_text: bool | None = None
    return_assistant_tokens_mask: bool | None = None
