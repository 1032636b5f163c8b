"""Calls written as plain JSON under a grammar, followed as any other format of calls.

`tool_choice` required is answered by `[{"name": …, "parameters": …}, …]`, a named function by its
bare arguments (`forced_schema` has the grammars). Both parsers pass the text of arguments on as it
comes; nothing of it is read anew, so the pieces joined are what the model wrote.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ortloom.models.tool_parsers.tool_parser import (
    ArgumentsDelta,
    CallStart,
    ParsedTools,
    ToolCall,
    ToolEvent,
    ToolParser,
    ToolSpec,
)

_ARGUMENTS = ("parameters", "arguments")


class NamedCall(ToolParser):
    """The whole output is the arguments of one function.

    Args:
        name: the function.
        tools: what the request offers.
        template_kwargs: not used.
    """

    def __init__(
        self,
        name: str,
        tools: Sequence[ToolSpec] = (),
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._name = name
        self._begun = False
        self._sent = False

    def push(self, text: str) -> list[ToolEvent]:
        """Every piece is arguments; blanks before the first are dropped."""
        if not self._sent:
            text = text.lstrip()
        if not text:
            return []
        self._sent = True
        return [*self._begin(), ArgumentsDelta(0, text)]

    def finish(self) -> list[ToolEvent]:
        """An output without any text is a call without arguments."""
        return [] if self._sent else [*self._begin(), ArgumentsDelta(0, "{}")]

    def parse(self, text: str) -> ParsedTools:
        """One call, its arguments as they were written."""
        return ParsedTools("", (ToolCall(self._name, text.strip() or "{}"),))

    def _begin(self) -> list[ToolEvent]:
        if self._begun:
            return []
        self._begun = True
        return [CallStart(0, self._name)]


class ForcedCalls(ToolParser):
    """The output is a JSON list of calls.

    What follows a string or a bracket is told by reading character by character: the text may be
    cut anywhere, and the end of a call must be known when it comes.
    """

    def __init__(
        self, tools: Sequence[ToolSpec] = (), template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._at: Literal["list", "key", "in_key", "colon", "value", "in_value", "after"] = "list"
        self._index = -1
        self._key = ""
        self._name: str | None = None
        self._text = ""  # of the key or name being read
        self._held = ""  # arguments that came before the name
        self._quoted = self._escaped = False
        self._depth = 0
        self.ended: set[int] = set()
        """Calls whose arguments are whole."""

    def push(self, text: str) -> list[ToolEvent]:
        """Follow a piece."""
        events: list[ToolEvent] = []
        pending = ""
        for char in text:
            index = self._index
            argument, event = self._step(char)
            if pending and (index != self._index or event is not None):
                events.append(ArgumentsDelta(index, pending))
                pending = ""
            if event is not None:
                events.append(event)
                if self._held:
                    events.append(ArgumentsDelta(self._index, self._held))
                    self._held = ""
            pending += argument
        if pending:
            events.append(ArgumentsDelta(self._index, pending))
        return events

    def finish(self) -> list[ToolEvent]:
        """Nothing is held back that could still be sent."""
        return []

    def parse(self, text: str) -> ParsedTools:
        """The calls that are whole; a text without any is content."""
        reader = ForcedCalls()
        names: dict[int, str] = {}
        arguments: dict[int, str] = {}
        for event in reader.push(text):
            if isinstance(event, CallStart):
                names[event.index] = event.name
            elif isinstance(event, ArgumentsDelta):
                arguments[event.index] = arguments.get(event.index, "") + event.fragment
        calls = tuple(
            ToolCall(name, arguments.get(index, "{}"))
            for index, name in names.items()
            if index in reader.ended
        )
        return ParsedTools("" if calls else text, calls)

    def _step(self, char: str) -> tuple[str, ToolEvent | None]:
        """Argument text that a character adds, and the start of a call it completes."""
        match self._at:
            case "in_value":
                return self._value(char)
            case "value":
                if not char.isspace():
                    self._at, self._depth, self._text = "in_value", 0, ""
                    return self._value(char)
            case "in_key":
                if self._string(char):
                    self._key, self._at = _loaded(self._text), "colon"
            case "list":
                if char == "{":
                    self._at, self._name, self._held = "key", None, ""
                    self._index += 1
            case "key":
                if char == '"':
                    self._at, self._text, self._quoted = "in_key", '"', True
                elif char == "}":
                    self._end()
            case "colon":
                if char == ":":
                    self._at = "value"
            case "after":
                self._after(char)
        return "", None

    def _value(self, char: str) -> tuple[str, ToolEvent | None]:
        """A character in or right behind a value."""
        ended, belongs = False, True
        if self._quoted:
            ended = self._string(char) and self._depth == 0
        elif char == '"':
            self._quoted, self._text = True, char
        elif char in "{[":
            self._depth += 1
        elif self._depth == 0 and (char in "}]," or char.isspace()):
            ended, belongs = True, False
        elif char in "}]":
            self._depth -= 1
            ended = self._depth == 0
        added = ""
        if self._key in _ARGUMENTS and belongs:
            if self._name is None:
                self._held += char
            else:
                added = char
        event: ToolEvent | None = None
        if ended:
            self._at = "after"
            if self._key == "name":
                self._name = _loaded(self._text)
                event = CallStart(self._index, self._name)
            if not belongs:
                self._after(char)
        return added, event

    def _string(self, char: str) -> bool:
        """Follow a string in `_text`; True when it ends."""
        self._text += char
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._quoted = False
            return True
        return False

    def _after(self, char: str) -> None:
        if char == ",":
            self._at = "key"
        elif char == "}":
            self._end()

    def _end(self) -> None:
        self._at = "list"
        if self._name is not None:
            self.ended.add(self._index)


def _loaded(text: str) -> str:
    """A JSON string's value, or the text itself where it is none."""
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip('"')
