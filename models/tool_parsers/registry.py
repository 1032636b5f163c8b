"""The tool-call parsers by name, and which one a chat template speaks of."""

from collections.abc import Sequence

from ortloom.models.parser_names import ParserNames
from ortloom.models.tool_parsers.tool_parser import ToolParser

_BUILT_IN = {
    "apertus": ("apertus", "ApertusParser"),
    "cohere_command3": ("cohere", "CohereParser"),
    "cohere_command4": ("cohere", "CohereParser"),
    "deepseek_v3": ("deepseek_json", "DeepseekV3Parser"),
    "deepseek_v31": ("deepseek_json", "DeepseekV31Parser"),
    "deepseek_v32": ("deepseek_dsml", "DeepseekV32Parser"),
    "deepseek_v4": ("deepseek_dsml", "DeepseekV4Parser"),
    "deepseek_v41": ("deepseek_dsml", "DeepseekV41Parser"),
    "dots": ("invoke_tags", "DotsParser"),
    "ernie45": ("ernie45", "Ernie45Parser"),
    "functiongemma": ("gemma", "FunctionGemmaParser"),
    "gemma4": ("gemma", "GemmaParser"),
    "gigachat3": ("gigachat3", "GigachatParser"),
    "glm45": ("glm", "GlmParser"),
    "glm47": ("glm", "GlmParser"),
    "granite": ("granite", "GraniteParser"),
    "granite-20b-fc": ("granite", "Granite20bParser"),
    "granite4": ("hermes", "HermesParser"),
    "hermes": ("hermes", "HermesParser"),
    "hunyuan_a13b": ("tool_calls_tag", "HunyuanParser"),
    "hy_v3": ("hy", "HyParser"),
    "hy_v4": ("hy", "HyV4Parser"),
    "inkling": ("inkling", "InklingParser"),
    "internlm": ("internlm", "InternlmParser"),
    "jamba": ("tool_calls_tag", "JambaParser"),
    "k2_horizon": ("k2_horizon", "K2HorizonParser"),
    "kimi_k2": ("kimi_k2", "KimiK2Parser"),
    "kimi_k3": ("kimi_k3", "KimiK3Parser"),
    "lfm2": ("python_calls", "Lfm2Parser"),
    "ling3": ("glm", "GlmParser"),
    "llama3_json": ("bare_json", "LlamaJsonParser"),
    "llama4_json": ("bare_json", "LlamaJsonParser"),
    "llama4_pythonic": ("python_calls", "Llama4PythonicParser"),
    "longcat": ("hermes", "LongcatParser"),
    "mimo": ("function_tags", "FunctionTagsParser"),
    "minicpm5": ("minicpm5", "Minicpm5Parser"),
    "minimax": ("tool_calls_tag", "MinimaxM1Parser"),
    "minimax_m2": ("invoke_tags", "MinimaxM2Parser"),
    "minimax_m3": ("minimax_m3", "MinimaxM3Parser"),
    "mistral": ("mistral", "MistralParser"),
    "muse_glimmer": ("muse_glimmer", "MuseGlimmerParser"),
    "olmo3": ("python_calls", "Olmo3Parser"),
    "openai": ("harmony", "HarmonyParser"),
    "phi4_mini_json": ("bare_json", "Phi4MiniParser"),
    "plamo3": ("plamo3", "Plamo3Parser"),
    "poolside_v1": ("glm", "GlmParser"),
    "pythonic": ("python_calls", "PythonicParser"),
    "qwen3": ("hermes", "HermesParser"),
    "qwen3_coder": ("function_tags", "FunctionTagsParser"),
    "qwen3_xml": ("function_tags", "FunctionTagsParser"),
    "seed_oss": ("function_tags", "SeedOssParser"),
    "step3": ("invoke_tags", "Step3Parser"),
    "step3p5": ("function_tags", "FunctionTagsParser"),
    "xlam": ("bare_json", "XlamParser"),
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
