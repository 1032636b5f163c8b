"""Which names exist, what a plugin file adds, and what `auto` stands for."""

import textwrap

import pytest

from ortloom.errors import ConfigError
from ortloom.models.parser_names import UnknownParser
from ortloom.models.parser_plugin import run_plugin
from ortloom.models.reasoning_parsers import registry as reasoning
from ortloom.models.reasoning_parsers.reasoning_parser import ReasoningParser
from ortloom.models.tool_parsers import registry as tools
from ortloom.models.tool_parsers.tool_parser import ToolParser

TOOL_NAMES = [
    "hermes",
    "granite4",
    "qwen3",
    "longcat",
    "mistral",
    "llama3_json",
    "llama4_json",
    "pythonic",
    "llama4_pythonic",
    "olmo3",
    "lfm2",
    "granite",
    "granite-20b-fc",
    "internlm",
    "jamba",
    "hunyuan_a13b",
    "phi4_mini_json",
    "xlam",
    "deepseek_v3",
    "deepseek_v31",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "kimi_k2",
    "kimi_k3",
    "qwen3_coder",
    "qwen3_xml",
    "mimo",
    "step3p5",
    "seed_oss",
    "glm45",
    "glm47",
    "ling3",
    "poolside_v1",
    "hy_v3",
    "hy_v4",
    "k2_horizon",
    "minimax_m2",
    "minimax_m3",
    "dots",
    "muse_glimmer",
    "step3",
    "minicpm5",
    "functiongemma",
    "gemma4",
    "apertus",
    "gigachat3",
    "ernie45",
    "cohere_command3",
    "cohere_command4",
    "inkling",
    "openai",
    "minimax",
    "plamo3",
]

REASONING_NAMES = [
    "deepseek_r1",
    "deepseek_v3",
    "holo2",
    "deepseek_v4",
    "deepseek_v41",
    "qwen3",
    "mimo",
    "nemotron_v3",
    "glm45",
    "glm47",
    "ling3",
    "step3",
    "step3p5",
    "olmo3",
    "minimax_m2",
    "minimax_m2_append_think",
    "minimax_m3",
    "kimi_k2",
    "kimi_k3",
    "granite",
    "granite_thinking",
    "hunyuan_a13b",
    "hy_v3",
    "hy_v4",
    "ernie45",
    "seed_oss",
    "mistral",
    "gemma4",
    "cohere_command3",
    "cohere_command4",
    "openai_gptoss",
    "muse_glimmer",
    "poolside_v1",
    "inkling",
    "k2_horizon",
    "plamo3",
    "think_auto",
]


def test_the_lists_are_whole():
    assert len(set(TOOL_NAMES)) == len(TOOL_NAMES) == 51 + 3
    assert len(set(REASONING_NAMES)) == len(REASONING_NAMES) == 35 + 2


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_a_tool_parser_of_every_name(name):
    assert name in tools.tool_parser_names()
    parser = tools.tool_parser(name)([])
    assert isinstance(parser, ToolParser)
    assert parser.parse("hello").content == "hello"


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_a_reasoning_parser_of_every_name(name):
    assert name in reasoning.reasoning_parser_names()
    assert isinstance(reasoning.reasoning_parser(name)(), ReasoningParser)


@pytest.mark.parametrize("registry", [tools.tool_parser, reasoning.reasoning_parser])
@pytest.mark.parametrize("name", ["qwen9", "auto", "none", ""])
def test_an_unknown_name_is_answered_with_those_that_exist(registry, name):
    with pytest.raises(UnknownParser, match=r"qwen3.*auto.*none") as caught:
        registry(name)
    assert repr(name) in str(caught.value)
    assert caught.value.exit_code == 2


def test_every_built_in_name_loads():
    for name in tools.tool_parser_names():
        assert issubclass(tools.tool_parser(name), ToolParser)
    for name in reasoning.reasoning_parser_names():
        assert issubclass(reasoning.reasoning_parser(name), ReasoningParser)


PLUGIN = """
    from ortloom.models.reasoning_parsers import registry as reasoning
    from ortloom.models.reasoning_parsers.think_tags import ThinkReasoning
    from ortloom.models.tool_parsers import registry as tools
    from ortloom.models.tool_parsers.hermes import HermesParser

    class Mine(HermesParser):
        opens = ("<mine>",)
        closes = ("</mine>",)

    tools.register(["{0}", "{0}_too"], Mine)
    reasoning.register("{0}", ThinkReasoning)
"""


def test_a_plugin_file_adds_names(tmp_path):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(textwrap.dedent(PLUGIN.format("plugged")))
    run_plugin(plugin)
    assert {"plugged", "plugged_too"} <= set(tools.tool_parser_names())
    assert "plugged" in reasoning.reasoning_parser_names()
    (call,) = tools.tool_parser("plugged_too")([]).parse('<mine>{"name": "f"}</mine>').calls
    assert call.name == "f"
    run_plugin(plugin)  # a second time it is not run again


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('broken')", "RuntimeError: broken"),
        ("def", "SyntaxError"),
        ("import sys; sys.exit(3)", "SystemExit"),
        (
            "from ortloom.models.tool_parsers.registry import register\nregister('x', dict)",
            "no tool-call parser",
        ),
        (
            "from ortloom.models.tool_parsers.hermes import HermesParser\n"
            "from ortloom.models.tool_parsers.registry import register\n"
            "register(['ok', 'auto'], HermesParser)",
            "'auto' cannot be the name",
        ),
    ],
)
def test_a_plugin_that_fails_says_why(tmp_path, source, reason):
    plugin = tmp_path / "plugin.py"
    plugin.write_text(source)
    with pytest.raises(ConfigError, match=reason):
        run_plugin(plugin, "--tool-parser-plugin")
    assert "ok" not in tools.tool_parser_names()


def test_a_plugin_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="--tool-parser-plugin: there is no file"):
        run_plugin(tmp_path / "absent.py", "--tool-parser-plugin")


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "hermes"),
        ("{{ messages }}", "hermes"),
        ("<tool_call>", "hermes"),
        ("<tool_call>\n<function=f>", "step3p5"),
        ("<seed:tool_call><function=f>", "seed_oss"),
        ("<longcat_tool_call>", "longcat"),
        ("[TOOL_CALLS]", "mistral"),
        ("<|python_start|> <|python_tag|>", "llama4_pythonic"),
        ("<|python_tag|>", "llama3_json"),
        ("<tool_calls>[", "jamba"),
        ("<tool_calls:x>", "hy_v3"),
        ("<function_call>", "granite-20b-fc"),
        ("<function_calls>", "olmo3"),
        ("<｜DSML｜tool_calls>", "deepseek_v4"),
    ],
)
def test_auto_goes_by_the_most_specific_marker(template, name):
    assert tools.detect(template) == name


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (None, "none"),
        ("{{ messages }}", "none"),
        ("x</think>", "think_auto"),
        ("[THINK] <think>", "mistral"),
        ("<seed:think>", "seed_oss"),
    ],
)
def test_auto_for_reasoning(template, name):
    assert reasoning.detect(template) == name
