"""Turns of content blocks to messages of the chat pipeline.

A turn of the user may hold results of tools: each becomes a message of its own, before the user's
words. Redacted thinking cannot be read and is left out.
"""

import json
from typing import Any

from ortloom.errors import InvalidRequest
from ortloom.server.anthropic.wire import ContentBlock, InputMessage
from ortloom.server.openai.wire_chat import ChatMessage

_BILLING_HEADER = "x-anthropic-billing-header"
"""Begins a text block some clients put into the system prompt: a hash that differs each time and
would keep the prompt from being found in the prefix cache."""


def system_text(content: str | list[ContentBlock] | None) -> str:
    """The text of a system prompt; its blocks follow each other without a separator."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [block.text for block in content if block.type == "text" and block.text]
    return "".join(text for text in texts if not text.startswith(_BILLING_HEADER))


def chat_messages(messages: list[InputMessage]) -> list[ChatMessage]:
    """All turns, in order; system turns keep their places.

    Raises:
        InvalidRequest: a block holds what a text model cannot take.
    """
    out: list[ChatMessage] = []
    for number, message in enumerate(messages):
        if message.role == "system":
            text = system_text(message.content)
            out += [ChatMessage(role="system", content=text)] if text else []
        elif isinstance(message.content, str):
            out.append(ChatMessage(role=message.role, content=message.content))
        else:
            out += _turn(message.role, message.content, f"messages.{number}.content")
    return out


def _turn(role: str, blocks: list[ContentBlock], where: str) -> list[ChatMessage]:
    results: list[ChatMessage] = []
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        place = f"{where}.{number}"
        if block.type == "text" and block.text:
            texts.append(block.text)
        elif block.type == "image":
            raise _text_only(place, "image")
        elif block.type == "thinking" and block.thinking:
            thoughts.append(block.thinking)
        elif block.type == "tool_use":
            calls.append(_call(block, len(calls)))
        elif block.type == "tool_result":
            text = _result_text(block.content, place)
            if role == "user":
                identity = block.tool_use_id or ""
                results.append(ChatMessage(role="tool", content=text, tool_call_id=identity))
            else:
                texts.append(f"Tool result: {text}")
    if role == "user" and not texts:
        return results
    words = ChatMessage(
        role=role,
        content=_content(texts),
        tool_calls=calls or None,
        reasoning="".join(thoughts) or None,
    )
    return [*results, words]


def _content(texts: list[str]) -> str | list[Any] | None:
    if len(texts) > 1:
        return [{"type": "text", "text": text} for text in texts]
    return texts[0] if texts else None


def _call(block: ContentBlock, number: int) -> dict[str, Any]:
    return {
        "id": block.id or f"call_{number}",
        "type": "function",
        "function": {"name": block.name or "", "arguments": block.input or {}},
    }


def _result_text(content: str | list[dict[str, Any]] | None, where: str) -> str:
    """The text of a tool's result; items without text of their own are given as JSON."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = [_item_text(item, f"{where}.content.{i}") for i, item in enumerate(content)]
    return "\n".join(text for text in texts if text)


def _item_text(item: dict[str, Any], where: str) -> str:
    kind = item.get("type")
    if kind == "text":
        text = item.get("text")
        return text if isinstance(text, str) else ""
    if kind == "tool_reference":
        return str(item.get("tool_name") or item.get("name") or "")
    source = item.get("source")
    if kind == "image" or (isinstance(source, dict) and source.get("type") != "text"):
        raise _text_only(where, str(kind))
    return json.dumps(item, ensure_ascii=False)


def _text_only(where: str, kind: str) -> InvalidRequest:
    return InvalidRequest(
        f"{where}: this model takes text only; at most 0 {kind}(s) may be given.", where
    )
