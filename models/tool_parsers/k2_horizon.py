"""k2_horizon: calls in a wrapper, with keys and values in tags, or as JSON.

    <ifm|tool_calls><ifm|tool_call>get_temp<ifm|arg_key>city</ifm|arg_key>
    <ifm|arg_value>Oslo</ifm|arg_value></ifm|tool_call></ifm|tool_calls>

The template's `tool_call_format` chooses the form: xml as above, xml_typed with
`<ifm|arg_type>…</ifm|arg_type>` between key and value, or json with an object
`{"name": …, "arguments": …}` in each `<ifm|tool_call>`. Which it is shows in the text, so the
setting is not needed here. Known from names and one implementation, not from the model's pages.
"""

from typing import ClassVar

from ortloom.models.marker_scan import Markers
from ortloom.models.tool_parsers.schema_types import types_of
from ortloom.models.tool_parsers.tagged_or_json import TaggedOrJson

_VALUE, _TYPE = "<ifm|arg_value>", "<ifm|arg_type>"


class K2HorizonParser(TaggedOrJson):
    """All three forms."""

    keeps_special_tokens = True
    grammar_calls = False
    keeps_text_after = True
    drops_cut_call = False
    returns_cut_text = True
    known_only: ClassVar[bool] = True
    opens: ClassVar[tuple[str, ...]] = ("<ifm|tool_calls>",)
    calls: ClassVar[tuple[str, ...]] = ("<ifm|tool_call>",)
    head_ends: ClassVar[tuple[str, ...]] = ()
    keys: ClassVar[tuple[str, ...]] = ("<ifm|arg_key>",)
    key_ends: ClassVar[tuple[str, ...]] = ("</ifm|arg_key>",)
    value_opens: ClassVar[tuple[str, ...]] = (_VALUE, _TYPE)
    value_ends: ClassVar[tuple[str, ...]] = ("</ifm|arg_value>",)
    call_ends: ClassVar[tuple[str, ...]] = ("</ifm|tool_call>",)
    closes: ClassVar[tuple[str, ...]] = ("</ifm|tool_calls>",)
    _type_end = Markers("</ifm|arg_type>")
    _json_end = Markers("</ifm|tool_call>")

    def _head_text(self) -> bool:
        if self._length or self._skip_blanks() != "{":
            return super()._head_text()
        self._begin_json()
        return True

    def _after_json(self) -> bool:
        if not self._skip_blanks():
            return False
        known, marker = self._at_marker(self._json_end)
        if not known:
            return False
        if marker is None:
            self._refuse()
        else:
            self._state = self._between
        return True

    def _value_open(self) -> bool:
        """Past a type, where one is stated, to the value."""
        at = self._at
        if not super()._value_open():
            return False
        if self._state == self._value_text and _TYPE in self._text[at : self._at]:
            self._stated: list[str] = []
            self._state = self._type_text
        return True

    def _type_text(self) -> bool:
        text, marker = self._until(self._type_end)
        self._stated.append(text)
        if marker is None:
            return False
        stated = "".join(self._stated).partition("[")[0].strip()
        tool = self.tools.get(self._name)
        properties = tool.parameters.get("properties") if tool is not None else None
        if stated and (not isinstance(properties, dict) or self._key not in properties):
            self._types = types_of({"type": stated}, {})
        self._state = self._value_open
        return True
