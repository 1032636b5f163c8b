"""Input items, output items and instructions as chat messages.

One chat message of the model may span several items: reasoning, text and function calls that follow
each other become one assistant message.
"""

import json
from collections.abc import Callable, Iterable
from typing import Any, Literal

import msgspec

from ortloom.errors import InvalidRequest, ResponseNotFound, SchemaViolation
from ortloom.server.limits import convert_json
from ortloom.server.openai.responses.store import Conversation
from ortloom.server.openai.wire_chat import ChatMessage

Status = Literal["in_progress", "completed", "incomplete"]

_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "text": "text",
    "summary_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Part types that hold text, with the member that holds it."""

_MEDIA = frozenset({"input_image", "input_audio", "input_file", "input_video", "image_url"})

_UNFINISHED = ("in_progress", "incomplete")


class MessageItem(msgspec.Struct, kw_only=True):
    """A message; `type` may be left out."""

    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[Any]
    type: Literal["message"] = "message"
    status: Status | None = None


class FunctionCallItem(msgspec.Struct, kw_only=True):
    """A call the model made."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None
    status: Status | None = None


class FunctionCallOutputItem(msgspec.Struct, kw_only=True):
    """What a call gave."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | list[Any]


class ReasoningItem(msgspec.Struct, kw_only=True):
    """What the model thought."""

    type: Literal["reasoning"]
    content: list[Any] | None = None
    summary: list[Any] | None = None
    encrypted_content: str | None = None
    status: Status | None = None


class ItemReference(msgspec.Struct, kw_only=True):
    """An output item of a stored response, by its id."""

    id: str
    type: Literal["item_reference"] = "item_reference"


class MessageBuilder:
    """Appends items to a conversation.

    Messages it was given are shared with others and never changed.

    Args:
        earlier: the conversation so far.
        find: an item of a stored response by its id, None = unknown.
    """

    def __init__(
        self,
        earlier: Iterable[ChatMessage] = (),
        find: Callable[[str], dict[str, Any] | None] = lambda item_id: None,
    ) -> None:
        self.messages = list(earlier)
        self._shared = len(self.messages)
        self._find = find

    def add_input(self, given: str | list[Any]) -> None:
        """The `input` of a request.

        Raises:
            SchemaViolation: an item does not fit.
            InvalidRequest: an item or a part of a kind that cannot be taken.
            ResponseNotFound: a reference to an unknown item.
        """
        if isinstance(given, str):
            self.messages.append(ChatMessage(role="user", content=given))
            return
        for index, item in enumerate(given):
            self.add(item, f"body.input.{index}")

    def add(self, item: object, where: str) -> None:
        """One item; raises as `add_input`."""
        if not isinstance(item, dict):
            raise SchemaViolation(f"1 validation error: '{where}' is no object.", where)
        kind = item.get("type")
        if kind is None:
            kind = "item_reference" if _refers(item) else "message"
            item = {name: value for name, value in item.items() if name != "type"}
        if kind == "message":
            self._add_message(convert_json(item, MessageItem, where), where)
        elif kind == "reasoning":
            self._add_reasoning(convert_json(item, ReasoningItem, where), where)
        elif kind == "function_call":
            self._add_call(convert_json(item, FunctionCallItem, where), where)
        elif kind == "function_call_output":
            result = convert_json(item, FunctionCallOutputItem, where)
            content = _content(result.output, f"{where}.output")
            self.messages.append(
                ChatMessage(role="tool", content=content, tool_call_id=result.call_id)
            )
        elif kind == "item_reference":
            self.add(self._referred(convert_json(item, ItemReference, where)), where)
        else:
            raise InvalidRequest(
                f"'{where}' has the type '{str(kind)[:40]}', which is not supported; it is one of "
                "message, reasoning, function_call, function_call_output, item_reference.",
                "input",
            )

    def continue_last(self, text: str) -> None:
        """Lengthen the open last message by what the model wrote."""
        last = self.messages[-1]
        if isinstance(last.content, str) or last.content is None:
            content = (last.content or "") + text
            self.messages[-1] = msgspec.structs.replace(last, content=content)
        else:
            self.messages.append(ChatMessage(role="assistant", content=text))

    def _referred(self, reference: ItemReference) -> dict[str, Any]:
        found = self._find(reference.id)
        if found is None:
            raise ResponseNotFound(f"Item '{reference.id[:80]}' was not found.", "input")
        return found

    def _open(self) -> ChatMessage | None:
        """The last message if it is the assistant's and made here, so that it may be added to."""
        if len(self.messages) > self._shared and self.messages[-1].role == "assistant":
            return self.messages[-1]
        return None

    def _add_message(self, item: MessageItem, where: str) -> None:
        content = _content(item.content, f"{where}.content")
        last = self._open() if item.role == "assistant" else None
        if last is not None and last.content is None:
            last.content = content
        else:
            self.messages.append(ChatMessage(role=item.role, content=content))

    def _add_reasoning(self, item: ReasoningItem, where: str) -> None:
        if item.encrypted_content:
            raise InvalidRequest(
                f"'{where}' has encrypted_content, which cannot be read here.", "input"
            )
        name = "content" if item.content else "summary"
        parts = item.content or item.summary or []
        text = "\n".join(_texts(parts, f"{where}.{name}"))
        self.messages.append(ChatMessage(role="assistant", reasoning=text))

    def _add_call(self, item: FunctionCallItem, where: str) -> None:
        _check_arguments(item.arguments, f"{where}.arguments")
        name = item.name if item.namespace is None else f"{item.namespace}__{item.name}"
        function = {"name": name, "arguments": item.arguments}
        call = {"id": item.call_id, "type": "function", "function": function}
        last = self._open()
        if last is None:
            self.messages.append(ChatMessage(role="assistant", tool_calls=[call]))
        elif last.tool_calls is None:
            last.tool_calls = [call]
        else:
            last.tool_calls.append(call)


def referred_items(given: str | list[Any]) -> set[str]:
    """Ids of the stored items that an input refers to."""
    items = given if isinstance(given, list) else []
    found = [item["id"] for item in items if isinstance(item, dict) and _refers(item)]
    return {item_id for item_id in found if isinstance(item_id, str)}


def _refers(item: dict[str, Any]) -> bool:
    """It is nothing but the id of another item; the type may be left out."""
    kind = item.get("type")
    bare = kind is None and "role" not in item
    return "id" in item and (bare or kind == "item_reference")


def continues_last(given: str | list[Any]) -> bool:
    """The last input item is an unfinished one of the assistant's, which the model goes on with."""
    last = given[-1] if isinstance(given, list) and given else None
    if not isinstance(last, dict) or last.get("status") not in _UNFINISHED:
        return False
    kind = last.get("type", "message")
    return kind == "reasoning" or (kind == "message" and last.get("role") == "assistant")


def extended(
    conversation: Conversation,
    messages: list[ChatMessage],
    output: list[dict[str, Any]],
    continued: bool,
) -> Conversation:
    """The conversation after a response.

    Args:
        conversation: before the request.
        messages: the same with the request's input.
        output: the response's items.
        continued: the first message of the output goes on with the last one of the input.
    """
    builder = MessageBuilder(messages)
    for index, item in enumerate(output):
        if item["type"] == "function_call" and not _is_json(item["arguments"]):
            continue  # cut off: no template can show it
        if continued and index == 0 and item["type"] == "message":
            builder.continue_last("".join(part["text"] for part in item["content"]))
            continue
        builder.add(item, f"output.{index}")
    new = builder.messages[len(conversation.messages) :]
    size = conversation.size + len(msgspec.json.encode(new))
    return Conversation(tuple(builder.messages), size)


def _content(content: str | list[Any], where: str) -> str | list[Any]:
    """A text, or parts if there are several."""
    if isinstance(content, str):
        return content
    texts = _texts(content, where)
    if len(texts) == 1:
        return texts[0]
    return [{"type": "text", "text": text} for text in texts]


def _texts(parts: list[Any], where: str) -> list[str]:
    return [_text(part, f"{where}.{index}") for index, part in enumerate(parts)]


def _text(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(kind, str):
        raise SchemaViolation(f"1 validation error: '{where}' is no part with a type.", where)
    if kind in _MEDIA:
        raise InvalidRequest(f"'{where}' has the type '{kind}', but the model takes text only.")
    if kind not in _TEXT:
        raise InvalidRequest(
            f"'{where}' has the unknown type '{kind[:40]}'; supported types: {', '.join(_TEXT)}.",
            "type",
        )
    member = _TEXT[kind]
    text = part.get(member)
    if not isinstance(text, str):
        place = f"{where}.{member}"
        raise SchemaViolation(f"1 validation error: '{place}' must be a string.", place)
    return text


def _check_arguments(arguments: str, where: str) -> None:
    if arguments and not _is_json(arguments):
        raise InvalidRequest(f"'{where}' is not valid JSON.", "input")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
