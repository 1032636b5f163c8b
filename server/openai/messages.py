"""Chat messages of a request as the template sees them.

Content becomes a string or a list of parts after the template's content format; the arguments of
tool calls in the history become objects.
"""

import json
from typing import Any

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.models.chat_template import Message
from ortloom.models.template_environment import ContentFormat
from ortloom.server.openai.wire_chat import ChatMessage, Tool

_TEXT_PARTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""Part types that hold text, with the member that holds it."""

_MEDIA_PARTS = {
    "image_url": "image",
    "input_image": "image",
    "image_pil": "image",
    "image_embeds": "image",
    "input_audio": "audio",
    "audio_url": "audio",
    "audio_embeds": "audio",
    "video_url": "video",
}
"""Part types of other media, with their modality."""


def template_messages(messages: list[ChatMessage], form: ContentFormat) -> list[Message]:
    """All messages of a request.

    Raises:
        InvalidRequest: a content part or tool call does not fit; `param` says which.
    """
    return [_message(m, form, f"messages.{i}") for i, m in enumerate(messages)]


def template_tools(tools: list[Tool] | None) -> list[dict[str, Any]] | None:
    """Tool objects with all their members (absent ones null), or None."""
    if tools is None:
        return None
    listed = []
    for tool in tools:
        function = msgspec.to_builtins(tool.function)
        if function["strict"] is None:
            del function["strict"]
        listed.append({"type": tool.type, "function": function})
    return listed


def text_of(message: ChatMessage) -> str:
    """The text of a message, its parts joined by newlines."""
    return str(_content(message.content, "string", "messages"))


def _message(message: ChatMessage, form: ContentFormat, where: str) -> Message:
    out: Message = {"role": message.role, "content": _content(message.content, form, where)}
    if message.role == "assistant":
        reasoning = message.reasoning
        reasoning = message.reasoning_content if reasoning is None else reasoning
        if isinstance(reasoning, str):
            out["reasoning"] = reasoning
            out["reasoning_content"] = reasoning
        if message.tool_calls:
            calls = enumerate(message.tool_calls)
            out["tool_calls"] = [_tool_call(c, f"{where}.tool_calls.{i}") for i, c in calls]
    elif message.role == "tool" and isinstance(message.tool_call_id, str):
        out["tool_call_id"] = message.tool_call_id
    if isinstance(message.name, str):
        out["name"] = message.name
    return out


def _content(content: str | list[Any] | None, form: ContentFormat, where: str) -> object:
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [_part_text(p, f"{where}.content.{i}") for i, p in enumerate(content or ())]
    if form == "openai":
        return [{"type": "text", "text": text} for text in texts]
    return "\n".join(texts)


def _part_text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where} must be an object or a string.", where)
    kind = part.get("type")
    supported = ", ".join(_TEXT_PARTS)
    if not isinstance(kind, str):
        raise InvalidRequest(f"{where} has no type; supported types: {supported}.", "type")
    if kind in _MEDIA_PARTS:
        modality = _MEDIA_PARTS[kind]
        raise InvalidRequest(
            f"{where}: this model takes text only; at most 0 {modality}(s) may be given."
        )
    if kind not in _TEXT_PARTS:
        raise InvalidRequest(f"{where}: unknown part type '{kind}'; supported types: {supported}.")
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise InvalidRequest(f"{where}.{_TEXT_PARTS[kind]} must be a string.")
    return text


def _tool_call(call: object, where: str) -> dict[str, Any]:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        raise InvalidRequest(f"{where} must be an object with a function.", where)
    function = dict(call["function"])
    if not isinstance(function.get("name"), str):
        raise InvalidRequest(f"{where}.function.name must be a string.", where)
    function["arguments"] = _arguments(function.get("arguments"), where)
    return {**call, "function": function}


def _arguments(arguments: object, where: str) -> object:
    """Arguments as an object; the empty string and null are an empty one."""
    if arguments is None or arguments == "":
        return {}
    if not isinstance(arguments, str):
        return arguments
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        raise InvalidRequest(f"{where}.function.arguments is not valid JSON.", where) from None
    return {} if parsed is None else parsed
