"""jamba, hunyuan_a13b, minimax: JSON between `<tool_calls>` and `</tool_calls>`.

    <tool_calls>[{"name": "get_temp", "arguments": {"city": "Oslo"}}]</tool_calls>

minimax (the M1 model) writes one object a line instead of a list. hunyuan_a13b and minimax think in
`<think>` tags; what looks like a call there is none.
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class JambaParser(JsonCalls):
    """A list between the tags."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<tool_calls>",)
    closes: ClassVar[tuple[str, ...]] = ("</tool_calls>",)
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True


class HunyuanParser(JambaParser):
    """The same, outside thinking only."""

    thinking: ClassVar[tuple[str, str] | None] = ("<think>", "</think>")


class MinimaxM1Parser(JambaParser):
    """Objects, one a line, outside thinking only."""

    thinking: ClassVar[tuple[str, str] | None] = ("<think>", "</think>")
    object_form: ClassVar[bool] = True
    separators: ClassVar[str] = ","
