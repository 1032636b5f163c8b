"""Output items while they are generated: parts of the model's text in, items and their events out.

An item is opened by the first part of its kind and closed by the first one of another.
"""

import uuid
from collections.abc import Sequence
from typing import Any, Literal

from ortloom.models.tool_parsers.tool_parser import CallStart
from ortloom.runtime.messages import SamplingMask
from ortloom.server.openai.responses.events import Event

Item = dict[str, Any]
Logprobs = list[dict[str, Any]]
Ending = Literal["completed", "incomplete"]


class _Notes:
    """What is told of consecutive tokens: an entry each in both lists, or none in one of them."""

    def __init__(self) -> None:
        self.logprobs: Logprobs = []
        self.masks: list[SamplingMask] = []

    def add(self, logprobs: Logprobs, masks: Sequence[SamplingMask]) -> None:
        self.logprobs += logprobs
        self.masks += masks

    def clear(self) -> None:
        self.logprobs.clear()
        self.masks.clear()


class _Message:
    """Text for the reader."""

    def __init__(self, index: int, logprobs: bool, masks: bool) -> None:
        self.id = f"msg_{uuid.uuid4().hex}"
        self._place = {"item_id": self.id, "output_index": index, "content_index": 0}
        self._index = index
        self._text: list[str] = []
        self._logprobs = logprobs
        self._masks = masks
        self._notes = _Notes()

    def opened(self) -> list[Event]:
        part = {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
        part |= self._mask_member([])
        return [
            _item_event("added", self._index, self._item([], "in_progress")),
            {"type": "response.content_part.added", **self._place, "part": part},
        ]

    def add(self, text: str, notes: _Notes) -> Event:
        self._text.append(text)
        self.add_notes(notes)
        return {
            "type": "response.output_text.delta",
            **self._place,
            "delta": text,
            "logprobs": [_without_bytes(entry) for entry in notes.logprobs],
            **self._mask_member(notes.masks),
        }

    def add_notes(self, notes: _Notes) -> None:
        self._notes.add(notes.logprobs, notes.masks)

    def _mask_member(self, masks: list[SamplingMask]) -> dict[str, Any]:
        return {"sampling_mask": masks} if self._masks else {}

    def closed(self, status: Ending) -> list[Event]:
        item = self.item(status)
        part = item["content"][0]
        logprobs = [_without_bytes(entry) for entry in part["logprobs"] or ()]
        done = {"text": part["text"], "logprobs": logprobs}
        done |= self._mask_member(self._notes.masks)
        return [
            {"type": "response.output_text.done", **self._place, **done},
            {"type": "response.content_part.done", **self._place, "part": part},
            _item_event("done", self._index, item),
        ]

    def item(self, status: str) -> Item:
        part = {
            "annotations": [],
            "text": "".join(self._text),
            "type": "output_text",
            "logprobs": self._notes.logprobs if self._logprobs else None,
            **self._mask_member(self._notes.masks),
        }
        return self._item([part], status)

    def _item(self, content: list[Any], status: str) -> Item:
        return {
            "id": self.id,
            "content": content,
            "role": "assistant",
            "status": status,
            "type": "message",
            "phase": None,
        }


class _Reasoning:
    """What the model thinks."""

    def __init__(self, index: int) -> None:
        self.id = f"rs_{uuid.uuid4().hex}"
        self._place = {"item_id": self.id, "output_index": index, "content_index": 0}
        self._index = index
        self._text: list[str] = []

    def opened(self) -> list[Event]:
        part = {"text": "", "type": "reasoning_text"}
        return [
            _item_event("added", self._index, self._item(None, "in_progress")),
            {"type": "response.reasoning_part.added", **self._place, "part": part},
        ]

    def add(self, text: str) -> Event:
        self._text.append(text)
        return {"type": "response.reasoning_text.delta", **self._place, "delta": text}

    def closed(self, status: Ending) -> list[Event]:
        item = self.item(status)
        part = item["content"][0]
        return [
            {"type": "response.reasoning_text.done", **self._place, "text": part["text"]},
            {"type": "response.reasoning_part.done", **self._place, "part": part},
            _item_event("done", self._index, item),
        ]

    def item(self, status: str) -> Item:
        return self._item([{"text": "".join(self._text), "type": "reasoning_text"}], status)

    def _item(self, content: list[Any] | None, status: str) -> Item:
        return {
            "id": self.id,
            "summary": [],
            "type": "reasoning",
            "content": content,
            "encrypted_content": None,
            "status": status,
        }


class _Call:
    """A function call."""

    def __init__(self, index: int, call_id: str, name: str, namespace: str | None) -> None:
        self.id = f"fc_{uuid.uuid4().hex}"
        self._place = {"item_id": self.id, "output_index": index}
        self._index = index
        self._call_id = call_id
        self._name = name
        self._namespace = namespace
        self._arguments: list[str] = []

    def opened(self) -> list[Event]:
        return [_item_event("added", self._index, self.item("in_progress"))]

    def add(self, fragment: str) -> Event:
        self._arguments.append(fragment)
        return {
            "type": "response.function_call_arguments.delta",
            **self._place,
            "delta": fragment,
        }

    def closed(self, status: Ending) -> list[Event]:
        item = self.item(status)
        done = {"arguments": item["arguments"], "name": self._name}
        return [
            {"type": "response.function_call_arguments.done", **self._place, **done},
            _item_event("done", self._index, item),
        ]

    def item(self, status: str) -> Item:
        return {
            "arguments": "".join(self._arguments),
            "call_id": self._call_id,
            "name": self._name,
            "type": "function_call",
            "id": self.id,
            "namespace": self._namespace,
            "status": status,
        }


class OutputItems:
    """All output items of one response.

    Args:
        logprobs: messages have logprobs.
        masks: messages have sampling masks.
        namespaces: (namespace, own name) of functions by the name the model uses.
    """

    def __init__(self, logprobs: bool, masks: bool, namespaces: dict[str, tuple[str, str]]) -> None:
        self._with_logprobs = logprobs
        self._with_masks = masks
        self._namespaces = namespaces
        self._finished: list[Item] = []
        self._open: _Message | _Reasoning | _Call | None = None
        self._pending = _Notes()

    @property
    def in_call(self) -> bool:
        """A function call is open."""
        return isinstance(self._open, _Call)

    def note(self, logprobs: Logprobs, masks: Sequence[SamplingMask] = ()) -> None:
        """What is told of tokens whose text comes with the next part, or never."""
        self._pending.add(logprobs, masks)

    def text(self, text: str) -> list[Event]:
        """Text for the reader."""
        events: list[Event] = []
        message = self._open
        if not isinstance(message, _Message):
            events = self.close()
            message = self._open = self._message(len(self._finished))
            events += message.opened()
        return [*events, message.add(text, self._taken())]

    def reasoning(self, text: str) -> list[Event]:
        """Text of the reasoning."""
        self._pending.clear()
        events: list[Event] = []
        thought = self._open
        if not isinstance(thought, _Reasoning):
            events = self.close()
            thought = self._open = _Reasoning(len(self._finished))
            events += thought.opened()
        return [*events, thought.add(text)]

    def call(self, part: CallStart) -> list[Event]:
        """A function call begins."""
        self._pending.clear()
        events = self.close()
        space, name = self._namespaces.get(part.name, (None, part.name))
        call = self._open = _Call(len(self._finished), part.call_id or "", name, space)
        return [*events, *call.opened()]

    def arguments(self, fragment: str) -> list[Event]:
        """Arguments of the open call."""
        self._pending.clear()
        return [self._open.add(fragment)] if isinstance(self._open, _Call) else []

    def forget(self) -> None:
        """Tokens noted so far belong to text that is not shown."""
        self._pending.clear()

    def close(self, status: Ending = "completed") -> list[Event]:
        """Close the open item, if there is one."""
        open_ = self._open
        if open_ is None:
            return []
        if isinstance(open_, _Message):
            open_.add_notes(self._taken())
        self._finished.append(open_.item(status))
        self._open = None
        return open_.closed(status)

    def empty_message(self) -> None:
        """A message without text, for a model that wrote nothing at all."""
        if not self._finished:
            item = self._message(0).item("completed")
            self._finished.append({**item, "content": []})

    @property
    def items(self) -> list[Item]:
        """The closed items."""
        return self._finished

    def _message(self, index: int) -> _Message:
        return _Message(index, self._with_logprobs, self._with_masks)

    def _taken(self) -> _Notes:
        taken, self._pending = self._pending, _Notes()
        return taken


def _item_event(what: str, index: int, item: Item) -> Event:
    return {"type": f"response.output_item.{what}", "output_index": index, "item": item}


def _without_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """A logprob entry as events of the text have it."""
    kept = {name: value for name, value in entry.items() if name != "bytes"}
    top = [{"token": t["token"], "logprob": t["logprob"]} for t in entry["top_logprobs"]]
    return {**kept, "top_logprobs": top}
