"""The tool-call parsers by name, and which one a chat template speaks of."""

from collections.abc import Sequence

from ortloom.models.parser_names import ParserNames
from ortloom.models.tool_parsers.tool_parser import ToolParser

_BUILT_IN = {
    "granite4": ("hermes", "HermesParser"),
    "hermes": ("hermes", "HermesParser"),
    "longcat": ("hermes", "LongcatParser"),
    "qwen3": ("hermes", "HermesParser"),
}

_NAMES: ParserNames[ToolParser] = ParserNames(
    "tool-call parser",
    ToolParser,  # type: ignore[type-abstract]  # it is only compared with
    "ortloom.models.tool_parsers",
    _BUILT_IN,
)

_TEMPLATE_MARKERS = (
    ("muse_glimmer", "<atem:function_calls>"),
    ("longcat", "<longcat_tool_call>"),
    ("deepseek_v3", "<｜tool▁calls▁begin｜>"),
    ("deepseek_v32", "<｜DSML｜function_calls>"),
    ("deepseek_v4", "<｜DSML｜tool_calls>"),
    ("step3", "<｜tool_calls_begin｜>"),
    ("mistral", "[TOOL_CALLS]"),
    ("minicpm5", '<function name="'),
    ("olmo3", "<function_calls>"),
    ("granite-20b-fc", "<function_call>"),
    ("granite", "<|tool_call|>"),
    ("internlm", "<|action_start|><|plugin|>"),
    ("phi4_mini_json", "functools["),
    ("llama4_pythonic", "<|python_start|>"),
    ("llama3_json", "<|python_tag|>"),
    ("lfm2", "<|tool_call_start|>"),
    ("functiongemma", "<start_function_call>"),
    ("apertus", "<|tools_prefix|>"),
    ("gigachat3", "<|function_call|>"),
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("minimax_m2", "<minimax:tool_call>"),
    ("gemma4", "<|tool_call>call:"),
    ("seed_oss", "<seed:tool_call>"),
    ("jamba", "<tool_calls>"),
    ("hy_v3", "<tool_calls"),
    ("step3p5", "<function="),
    ("hermes", "<tool_call>"),
)
"""What a template that teaches the format writes; the first that is found counts."""


def tool_parser_names() -> tuple[str, ...]:
    """All names, plugins' included, in alphabetical order; without `auto` and `none`."""
    return _NAMES.names()


def tool_parser(name: str) -> type[ToolParser]:
    """The parser class of a name.

    Raises:
        UnknownParser: there is none; the text lists the names.
    """
    return _NAMES.get(name)


def register(names: str | Sequence[str], parser: type[ToolParser]) -> None:
    """Add a parser under one name or several; for plugins.

    Raises:
        ConfigError: a name that cannot be (`auto`, `none`, blank), or no subclass of `ToolParser`.
    """
    _NAMES.register(names, parser)


def detect(template: str | None) -> str:
    """The name that `auto` stands for: by what the chat template says, else `hermes`."""
    if template:
        for name, marker in _TEMPLATE_MARKERS:
            if marker in template:
                return name
    return "hermes"
