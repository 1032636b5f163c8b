"""A Messages request as a request of the chat pipeline."""

from typing import Any

from ortloom.errors import InvalidRequest, SchemaViolation
from ortloom.server.anthropic.blocks import chat_messages, system_text
from ortloom.server.anthropic.system_turns import after_results, placed
from ortloom.server.anthropic.wire import (
    CountTokensRequest,
    MessagesRequest,
    MessagesTool,
    MessagesToolChoice,
)
from ortloom.server.context import FrontContext
from ortloom.server.openai.wire_chat import (
    ChatCompletionRequest,
    FunctionDefinition,
    ReasoningEffort,
    TemplateFields,
    Tool,
)
from ortloom.server.openai.wire_common import JsonSchemaFormat, ResponseFormat

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def template_fields(body: CountTokensRequest, front: FrontContext) -> TemplateFields:
    """What the chat template sees.

    Raises:
        InvalidRequest: a block holds what a text model cannot take.
        SchemaViolation: a tool choice without its name.
    """
    choice = body.tool_choice
    if choice is not None and choice.type == "tool" and not choice.name:
        raise SchemaViolation(
            "1 validation error: tool_choice of type 'tool' needs a name.", "body.tool_choice"
        )
    messages = chat_messages(after_results(body.messages))
    off = choice is not None and choice.type == "none"
    hidden = off and front.config.front.exclude_tools_when_tool_choice_none
    return TemplateFields(
        messages=placed(system_text(body.system), messages, front.chat_template),
        tools=[_tool(tool) for tool in body.tools] if body.tools and not hidden else None,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=_effort(body),
    )


def chat_request(body: MessagesRequest, front: FrontContext) -> ChatCompletionRequest:
    """Sampling and reply fields.

    Args:
        body: the request.
        front: tells how many stop sequences there may be, and whether reasoning can be bounded;
            where it cannot, a thinking budget bounds nothing.

    Raises:
        SchemaViolation: too many stop sequences.
        InvalidRequest: an empty one.
    """
    _check_stops(body.stop_sequences, front.config.front.max_stop_strings)
    choice = body.tool_choice
    return ChatCompletionRequest(
        model=body.model,
        max_completion_tokens=body.max_tokens,
        stop=body.stop_sequences,
        stream=body.stream,
        temperature=body.temperature,
        top_k=body.top_k,
        top_p=body.top_p,
        tool_choice=None if choice is None else _choice(choice),
        parallel_tool_calls=not (choice is not None and choice.disable_parallel_tool_use),
        response_format=_format(body),
        thinking_token_budget=None if front.parsers.markers is None else _budget(body),
        logprobs_detail=body.logprobs_detail,
        cache_salt=body.cache_salt,
        kv_transfer_params=body.kv_transfer_params,
        ec_transfer_params=body.ec_transfer_params,
        vllm_xargs=body.vllm_xargs,
    )


def _check_stops(stops: list[str] | None, most: int) -> None:
    if stops is None:
        return
    if len(stops) > most:
        raise SchemaViolation(
            f"1 validation error: stop_sequences has {len(stops)} entries; at most {most} are "
            "allowed.",
            "body.stop_sequences",
        )
    if not all(stops):
        raise InvalidRequest("stop_sequences cannot contain an empty string.", "stop_sequences")


def _effort(body: CountTokensRequest) -> ReasoningEffort | None:
    """Thinking that is switched off wins over an effort."""
    if body.thinking is not None and body.thinking.type == "disabled":
        return "none"
    return None if body.output_config is None else body.output_config.effort


def _budget(body: MessagesRequest) -> int | None:
    thinking = body.thinking
    return thinking.budget_tokens if thinking is not None and thinking.type == "enabled" else None


def _format(body: MessagesRequest) -> ResponseFormat | None:
    given = None if body.output_config is None else body.output_config.format
    if given is None or given.schema is None:
        return None
    return ResponseFormat(
        type="json_schema", json_schema=JsonSchemaFormat(name="answer", schema=given.schema)
    )


def _choice(choice: MessagesToolChoice) -> str | dict[str, Any]:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name}}
    return _CHOICES[choice.type]


def _tool(tool: MessagesTool) -> Tool:
    schema = tool.input_schema
    return Tool(
        function=FunctionDefinition(
            name=tool.name,
            description=tool.description,
            parameters=schema if "type" in schema else {**schema, "type": "object"},
            strict=tool.strict,
        )
    )
