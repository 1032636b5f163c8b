"""apertus: a list of objects whose only key is the function.

<|tools_prefix|>[{"get_temp": {"city": "Oslo"}}]<|tools_suffix|>
"""

from typing import ClassVar

from ortloom.models.tool_parsers.json_calls import JsonCalls


class ApertusParser(JsonCalls):
    """`<|tools_prefix|>[{"f": {…}}]<|tools_suffix|>`."""

    keeps_special_tokens = True
    drops_cut_call = False
    opens: ClassVar[tuple[str, ...]] = ("<|tools_prefix|>",)
    closes: ClassVar[tuple[str, ...]] = ("<|tools_suffix|>",)
    object_form: ClassVar[bool] = False
    list_form: ClassVar[bool] = True
    key_is_name: ClassVar[bool] = True
