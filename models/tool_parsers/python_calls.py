"""pythonic, llama4_pythonic, lfm2, olmo3: calls in Python's spelling.

    [get_temp(city="Oslo", days=2), get_time()]
    <|python_start|>[get_temp(city="Oslo", days=2)]<|python_end|>
    <|tool_call_start|>[get_temp(city="Oslo", days=2)]<|tool_call_end|>Just a moment.
    <function_calls>get_temp(city="Oslo", days=2)
    get_time()</function_calls>

Arguments have names and literal values; JSON's true, false and null are taken too. Each is sent
once it is whole. Where no marker announces the list, it must be the whole output.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_text import json_text
from ortloom.models.tool_parsers.literal import literal_json
from ortloom.models.tool_parsers.python_argument import PythonArgument
from ortloom.models.tool_parsers.tool_parser import ToolSpec

_NAME = re.compile(r"[^\W\d][\w.-]*")
_NAME_PART = re.compile(r"[\w.-]*")
_ARGUMENT = re.compile(r"\s*([^\W\d]\w*)\s*=\s*(.*)", re.DOTALL)
_LONGEST_NAME = 256


class PythonCalls(Blocks):
    """Follows `OPEN [f(x=1), g()] CLOSE`.

    Attributes:
        bracketed: the calls stand in a list; False = on lines of their own up to `closes`.
        whole_output: text after a list makes the output malformed.
    """

    bracketed: ClassVar[bool] = True
    whole_output: ClassVar[bool] = False

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._name = ""
        self._argument = PythonArgument()
        self._parts: list[str] = []
        self._num_arguments = 0
        self._started = False
        self._any = False  # the block has a call

    def _unfinished(self) -> bool:
        inside = self._state == self._in_argument or (
            self.bracketed and self._state in (self._call_name, self._next_call)
        )
        return super()._unfinished() or inside

    def _enter(self, marker: str) -> None:
        self._any = False
        self._name = ""
        self._state = self._list_open if self.bracketed else self._call_name

    def _list_open(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        if char == "[":
            self._at += 1
            self._state = self._call_name
        else:
            self._refuse()
        return True

    def _call_name(self) -> bool:
        if not self._name and not self._skip_blanks():
            return False
        match = _NAME_PART.match(self._text, self._at)
        if match is not None:
            self._name += match.group()
            self._at = match.end()
        if len(self._name) > _LONGEST_NAME:
            self._refuse()
            return True
        char = self._peek()
        if not char:
            return False
        if char != "(" or not _NAME.fullmatch(self._name):
            self._refuse()
            return True
        self._at += 1
        self._started, self._num_arguments = False, 0
        self._next_argument()
        return True

    def _next_argument(self) -> None:
        self._argument = PythonArgument()
        self._parts.clear()
        self._state = self._in_argument

    def _in_argument(self) -> bool:
        begin = self._at
        self._at = self._argument.feed(self._text, begin)
        self._parts.append(self._text[begin : self._at])
        if self._argument.failed:
            self._refuse()
            return True
        if self._argument.end is None:
            return False
        closed = self._argument.end == ")"
        if not self._take_argument("".join(self._parts), closed):
            self._refuse()
            return True
        self._at += 1
        if closed:
            self._arguments("}" if self._num_arguments else "")
            self._end()
            self._any = True
            self._state = self._next_call
        else:
            self._next_argument()
        return True

    def _take_argument(self, text: str, last: bool) -> bool:
        """Send an argument; False where it is none."""
        if last and not text.strip():
            self._begin_call()
            return True
        match = _ARGUMENT.fullmatch(text)
        value = None if match is None else literal_json(match[2])
        if match is None or value is None:
            return False
        self._begin_call()
        before = ", " if self._num_arguments else "{"
        self._num_arguments += 1
        self._arguments(f"{before}{json_text(match[1])}: {value}")
        return True

    def _begin_call(self) -> None:
        if not self._started:
            self._started = True
            self._start(self._name)

    def _next_call(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        self._name = ""
        if char == ",":
            self._at += 1
            self._state = self._call_name
        elif not self.bracketed:
            known, marker = self._at_marker(self._limits)
            if not known:
                return False
            if marker is None:
                self._state = self._call_name
            else:
                self._state = self._outside
        elif char == "]":
            self._at += 1
            self._state = self._rest if self.whole_output else self._close
        else:
            self._refuse()
        return True

    def _rest(self) -> bool:
        """After a list that must be the whole output."""
        char = self._skip_blanks()
        if char:
            self.malformed = True
            self._at = len(self._text)
        return False


class PythonicParser(PythonCalls):
    """The list alone."""

    drops_cut_call = False
    returns_cut_text = True
    whole_output: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("<|python_tag|>",)
    bare: ClassVar[str] = "["


class Llama4PythonicParser(PythonCalls):
    """The list, with start and end tokens or alone."""

    keeps_special_tokens = True
    drops_cut_call = False
    returns_cut_text = True
    opens: ClassVar[tuple[str, ...]] = ("<|python_start|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|python_end|>",)
    bare: ClassVar[str] = "["


class Lfm2Parser(PythonCalls):
    """The list in tokens; text around it is content."""

    keeps_special_tokens = True
    keeps_text_after = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<|tool_call_start|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|tool_call_end|>",)


class Olmo3Parser(PythonCalls):
    """Calls on lines of their own in tags."""

    drops_cut_call = False
    bracketed: ClassVar[bool] = False
    opens: ClassVar[tuple[str, ...]] = ("<function_calls>",)
    closes: ClassVar[tuple[str, ...]] = ("</function_calls>",)
