"""granite and granite-20b-fc: JSON after a marker that nothing closes.

    <|tool_call|>[{"name": "get_temp", "arguments": {"city": "Oslo"}}]
    <function_call> {"name": "get_temp", "arguments": {"city": "Oslo"}}

granite also opens with `<tool_call>`, or with the list itself when it is the whole output.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class GraniteParser(JsonCalls):
    """A list after `<|tool_call|>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<|tool_call|>", "<tool_call>")
    bare: ClassVar[str] = "["
    returns_cut_text = True
    needs_arguments: ClassVar[bool] = True
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True


class Granite20bParser(JsonCalls):
    """An object after each `<function_call>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<function_call>",)
