"""How formats of calls stand around JSON arguments, for those whose calls a grammar can enforce.

A call is the text before its arguments, which names the tool, the arguments and the text after.
Formats whose arguments are no JSON, or whose calls share a wrapper, are not here.
"""

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallForm:
    """One format.

    Attributes:
        trigger: text that only a call begins with.
        before: text up to the arguments; `NAME` stands for the tool's name as JSON.
        after: text from the arguments on.
    """

    trigger: str
    before: str
    after: str

    def begin(self, name: str) -> str:
        """The text before the arguments of a call of this tool."""
        return self.before.replace("NAME", json.dumps(name, ensure_ascii=False))


_TAGS = CallForm("<tool_call>", '<tool_call>\n{"name": NAME, "arguments": ', "}\n</tool_call>")
_BARE = CallForm('{"name": ', '{"name": NAME, "parameters": ', "}")

CALL_FORMS: dict[str, CallForm] = {
    "ernie45": _TAGS,
    "granite-20b-fc": CallForm(
        "<function_call>", '<function_call> {"name": NAME, "arguments": ', "}"
    ),
    "granite4": _TAGS,
    "hermes": _TAGS,
    "internlm": CallForm(
        "<|action_start|>",
        '<|action_start|><|plugin|>\n{"name": NAME, "parameters": ',
        "}<|action_end|>",
    ),
    "llama3_json": _BARE,
    "llama4_json": _BARE,
    "longcat": CallForm(
        "<longcat_tool_call>",
        '<longcat_tool_call>\n{"name": NAME, "arguments": ',
        "}\n</longcat_tool_call>",
    ),
    "qwen3": _TAGS,
}
"""By the names of `--tool-call-parser`."""
