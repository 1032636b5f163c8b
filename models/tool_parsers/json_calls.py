"""Calls as JSON objects between markers: the base of the families that write them so."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from ortloom.models.tool_parsers.blocks import Blocks
from ortloom.models.tool_parsers.json_call import JsonCall
from ortloom.models.tool_parsers.tool_parser import ToolSpec


class JsonCalls(Blocks):
    """Follows `OPEN {…} CLOSE` or `OPEN [{…}, {…}] CLOSE`.

    Attributes:
        object_form, list_form: a bare object, a list of them may follow an opening string.
        separators: characters, besides blanks, between bare objects of one block; "" = a block
            holds one object.
        needs_arguments: an object without arguments is no call; where nothing announces calls,
            any object may have a name.
        name_keys, argument_keys, id_keys, key_is_name: see `JsonCall`.
    """

    object_form: ClassVar[bool] = True
    list_form: ClassVar[bool] = False
    separators: ClassVar[str] = ""
    needs_arguments: ClassVar[bool] = False
    name_keys: ClassVar[tuple[str, ...]] = ("name",)
    argument_keys: ClassVar[tuple[str, ...]] = ("arguments", "parameters")
    id_keys: ClassVar[tuple[str, ...]] = ()
    key_is_name: ClassVar[bool] = False

    def __init__(
        self, tools: Sequence[ToolSpec], template_kwargs: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tools, template_kwargs)
        self._in_list = False
        self._call = self._new_call()
        self._started = False

    def _new_call(self) -> JsonCall:
        return JsonCall(self.name_keys, self.argument_keys, self.id_keys, self.key_is_name)

    def _unfinished(self) -> bool:
        inside = self._state in (self._item, self._object, self._after)
        return super()._unfinished() or (self._in_list and inside)

    def _enter(self, marker: str) -> None:
        self._state = self._block

    def _block(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        self._in_list = char == "[" and self.list_form
        if self._in_list:
            self._at += 1
            self._state = self._item
        elif char == "{" and self.object_form:
            self._open_object()
        else:
            self._refuse()
        return True

    def _item(self) -> bool:
        char = self._skip_blanks()
        if not char:
            return False
        if char == "{":
            self._open_object()
        else:
            self._refuse()
        return True

    def _open_object(self) -> None:
        self._call, self._started = self._new_call(), False
        self._state = self._object

    def _object(self) -> bool:
        call = self._call
        self._at = call.feed(self._text, self._at)
        waits = self.needs_arguments or bool(self.id_keys)
        known = call.has_arguments or not waits or (call.done and not self.needs_arguments)
        if call.name and known and not self._started:
            self._started = True
            self._start(call.name, call.call_id)
        if self._started:
            self._arguments(call.take())
        if call.failed or (call.done and not self._started):
            self._refuse()
        elif call.done:
            self._end()
            self._state = self._after
        return call.failed or call.done

    def _after(self) -> bool:
        """After an object."""
        char = self._skip_blanks()
        if not char:
            return False
        if self._in_list and char in ",]":
            self._at += 1
            self._state = self._item if char == "," else self._close
        elif self._in_list:
            self._refuse()
        elif char in self.separators or (char == "{" and self.separators):
            self._at += char != "{"
            self._state = self._item
        else:
            self._state = self._close
        return True
