"""How formats whose calls are no plain JSON are written, for calls that a request forces.

A call is a head that names the tool, its arguments, and a tail; calls may share a wrapper.
Arguments are one JSON object, or members of their own: a text before each value, the value, a text
after it. `own_calls` makes the grammar of it. These are the formats whose `grammar_calls` is False.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnSyntax:
    """One format. In `head` and `member`, `NAME` stands for the tool's name, `NUMBER` for the
    call's number, `KEY` for the argument's name and `TYPE` for its JSON type.

    Attributes:
        opens, closes: around all calls.
        head, tail: around the arguments of a call.
        between: text between two calls.
        label: text that may stand between head and arguments.
        member: text before a value; None = the arguments are one JSON object.
        value_end: text that ends a value, which no value may hold.
        after_value: text after that; `KEY` may stand in it.
        quotes: what a string stands between.
        comma: text between two members.
        resume: text that may begin the output, where the prompt or a thought did not write it.
        thought: what a thought stands between, in formats that think before they call.
    """

    head: str
    tail: str
    opens: str = ""
    closes: str = ""
    between: str = ""
    label: str = ""
    member: str | None = None
    value_end: str = ""
    after_value: str = ""
    quotes: str = ""
    comma: str = ""
    resume: str = ""
    thought: tuple[str, str] | None = None


_G = "]<]minimax[>["

_GLM = OwnSyntax(
    head="<tool_call>NAME\n",
    member="<arg_key>KEY</arg_key>\n<arg_value>",
    value_end="</arg_value>",
    after_value="\n",
    tail="</tool_call>",
    between="\n",
)

OWN_SYNTAX: dict[str, OwnSyntax] = {
    "dots": OwnSyntax(
        opens="<dots_function_call>",
        head='<invoke name="NAME">',
        member='<parameter name="KEY">',
        value_end="</parameter>",
        tail="</invoke>",
        closes="</dots_function_call>",
    ),
    "gemma4": OwnSyntax(
        head="<|tool_call>call:NAME{",
        member="KEY:",
        quotes='<|"|>',
        comma=",",
        tail="}<tool_call|>",
    ),
    "glm45": _GLM,
    "glm47": OwnSyntax(
        head="<tool_call>NAME",
        member="<arg_key>KEY</arg_key><arg_value>",
        value_end="</arg_value>",
        tail="</tool_call>",
    ),
    "hy_v4": OwnSyntax(
        opens="<tool_calls>",
        head="<tool_call>NAME",
        member="<arg_key>KEY</arg_key><arg_value>",
        value_end="</arg_value>",
        tail="</tool_call>",
        closes="</tool_calls>",
    ),
    "inkling": OwnSyntax(
        head='<|content_invoke_tool_json|>{"name": "NAME", "args": ',
        tail="}<|end_message|>",
        between="<|message_model|>",
        resume="<|message_model|>",
        thought=("<|content_thinking|>", "<|end_message|>"),
    ),
    "k2_horizon": OwnSyntax(
        opens="<ifm|tool_calls>",
        head="<ifm|tool_call>NAME",
        member="<ifm|arg_key>KEY</ifm|arg_key><ifm|arg_value>",
        value_end="</ifm|arg_value>",
        tail="</ifm|tool_call>",
        closes="</ifm|tool_calls>",
    ),
    "kimi_k3": OwnSyntax(
        opens="<|open|>tools<|sep|>",
        head='<|open|>call tool="NAME" index="NUMBER"<|sep|>',
        member='<|open|>argument key="KEY" type="TYPE"<|sep|>',
        value_end="<|close|>argument<|sep|>",
        tail="<|close|>call<|sep|>",
        closes="<|close|>tools<|sep|>",
    ),
    "ling3": _GLM,
    "minimax_m3": OwnSyntax(
        opens=f"{_G}<tool_call>\n",
        head=f'{_G}<invoke name="NAME">',
        member=f"{_G}<KEY>",
        value_end=_G,
        after_value="</KEY>",
        tail=f"{_G}</invoke>\n",
        closes=f"{_G}</tool_call>",
    ),
    "mistral": OwnSyntax(head="[TOOL_CALLS]NAME", label="[ARGS]", tail=""),
    "muse_glimmer": OwnSyntax(
        head=' to=NAME<|message|><atem:function_calls>\n<atem:invoke name="NAME">\n',
        member='<atem:parameter name="KEY">',
        value_end="</atem:parameter>",
        after_value="\n",
        tail="</atem:invoke>\n</atem:function_calls><|eom|>",
        between="<|start|>assistant",
        resume="<|start|>assistant",
        thought=(" to=self<|message|>", "<|eom|>"),
    ),
    "openai": OwnSyntax(
        head="<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>",
        tail="<|call|>",
        between="<|start|>assistant",
        resume="<|start|>assistant",
        thought=("<|channel|>analysis<|message|>", "<|end|>"),
    ),
    "poolside_v1": _GLM,
}
"""By the names of `--tool-call-parser`."""
