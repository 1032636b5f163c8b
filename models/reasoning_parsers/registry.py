"""The reasoning parsers by name, and which one a chat template speaks of."""

from collections.abc import Sequence

from ortloom.models.parser_names import ParserNames
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser

_BUILT_IN = {
    "cohere_command3": ("cohere", "CohereReasoning"),
    "cohere_command4": ("cohere", "CohereReasoning"),
    "deepseek_r1": ("think_tags", "ThinkReasoning"),
    "deepseek_v3": ("think_tags", "AskedReasoning"),
    "deepseek_v4": ("think_tags", "DeepseekV4Reasoning"),
    "deepseek_v41": ("think_tags", "DeepseekV4Reasoning"),
    "ernie45": ("ernie45", "ErnieReasoning"),
    "gemma4": ("own_tags", "GemmaReasoning"),
    "glm45": ("think_tags", "SwitchedReasoning"),
    "glm47": ("think_tags", "SwitchedReasoning"),
    "granite": ("granite", "GraniteReasoning"),
    "granite_thinking": ("nemotron", "GraniteThinkingReasoning"),
    "holo2": ("think_tags", "SwitchedReasoning"),
    "hunyuan_a13b": ("hunyuan", "HunyuanReasoning"),
    "hy_v3": ("hy", "HyReasoning"),
    "hy_v4": ("hy", "HyReasoning"),
    "inkling": ("channels", "InklingReasoning"),
    "k2_horizon": ("own_tags", "K2HorizonReasoning"),
    "kimi_k2": ("think_tags", "KimiK2Reasoning"),
    "kimi_k3": ("own_tags", "KimiK3Reasoning"),
    "ling3": ("think_tags", "Ling3Reasoning"),
    "mimo": ("think_tags", "Qwen3Reasoning"),
    "minimax_m2": ("think_tags", "ThinkReasoning"),
    "minimax_m2_append_think": ("think_tags", "AppendThinkReasoning"),
    "minimax_m3": ("own_tags", "MinimaxM3Reasoning"),
    "mistral": ("own_tags", "MistralReasoning"),
    "muse_glimmer": ("channels", "MuseReasoning"),
    "nemotron_v3": ("nemotron", "NemotronReasoning"),
    "olmo3": ("think_tags", "ThinkReasoning"),
    "openai_gptoss": ("channels", "HarmonyReasoning"),
    "plamo3": ("own_tags", "Plamo3Reasoning"),
    "poolside_v1": ("think_tags", "AskedReasoning"),
    "qwen3": ("think_tags", "Qwen3Reasoning"),
    "seed_oss": ("own_tags", "SeedReasoning"),
    "step3": ("think_tags", "ThinkReasoning"),
    "step3p5": ("think_tags", "Step3p5Reasoning"),
    "think_auto": ("think_tags", "AutoThinkReasoning"),
}

_NAMES: ParserNames[ReasoningParser] = ParserNames(
    "reasoning parser",
    ReasoningParser,  # type: ignore[type-abstract]  # it is only compared with
    "ortloom.models.reasoning_parsers",
    _BUILT_IN,
)

_TEMPLATE_MARKERS = (
    ("mistral", "[THINK]"),
    ("seed_oss", "<seed:think>"),
    ("minimax_m3", "<mm:think>"),
    ("openai_gptoss", "<|channel|>analysis"),
    ("muse_glimmer", "to=self<|message|>"),
    ("gemma4", "<|channel>thought"),
    ("cohere_command3", "<|START_THINKING|>"),
    ("kimi_k3", "<|open|>think<|sep|>"),
    ("granite", "Here is my thought process:"),
    ("think_auto", "<think>"),
    ("think_auto", "</think>"),
)
"""What a template of the format writes; the first that is found counts."""


def reasoning_parser_names() -> tuple[str, ...]:
    """All names, plugins' included, in alphabetical order; without `auto` and `none`."""
    return _NAMES.names()


def reasoning_parser(name: str) -> type[ReasoningParser]:
    """The parser class of a name.

    Raises:
        UnknownParser: there is none; the text lists the names.
    """
    return _NAMES.get(name)


def register(names: str | Sequence[str], parser: type[ReasoningParser]) -> None:
    """Add a parser under one name or several; for plugins.

    Raises:
        ConfigError: a name that cannot be (`auto`, `none`, blank), or no subclass of
            `ReasoningParser`.
    """
    _NAMES.register(names, parser)


def detect(template: str | None) -> str:
    """The name that `auto` stands for: by what the chat template says, else `none`."""
    if template:
        for name, marker in _TEMPLATE_MARKERS:
            if marker in template:
                return name
    return "none"
