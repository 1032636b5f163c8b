import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.models.tool_parsers.registry import tool_parser_names


def front(*tokens, env=None):
    return make_plan(["m", *tokens], read_environment(env or {}), flag_table())[1].config.front


def test_without_flags_nothing_is_parsed():
    settings = front()
    assert settings.tool_call_parser is None
    assert settings.reasoning_parser is None
    assert not settings.enable_auto_tool_choice
    assert settings.tool_strict_level == "auto"


def test_names_and_switches_reach_the_configuration():
    settings = front(
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--reasoning-parser", "qwen3", "--exclude-tools-when-tool-choice-none"),
        *("--tool-strict-level", "function"),
    )
    assert settings.enable_auto_tool_choice
    assert settings.tool_call_parser == "hermes"
    assert settings.reasoning_parser == "qwen3"
    assert settings.exclude_tools_when_tool_choice_none
    assert settings.tool_strict_level == "function"


@pytest.mark.parametrize("flag", ["--tool-call-parser", "--reasoning-parser"])
def test_auto_stays_and_none_is_no_parser(flag):
    field = flag[2:].replace("-", "_")
    assert getattr(front(flag, "auto"), field) == "auto"
    assert getattr(front(flag, "none"), field) is None


@pytest.mark.parametrize("flag", ["--tool-call-parser", "--reasoning-parser"])
def test_an_unknown_name_lists_those_that_exist(flag):
    with pytest.raises(ConfigError) as caught:
        front(flag, "hermez")
    assert caught.value.exit_code == 2
    assert flag in str(caught.value)
    listed = tool_parser_names() if flag == "--tool-call-parser" else ("qwen3", "deepseek_r1")
    assert all(name in str(caught.value) for name in listed)


@pytest.mark.parametrize("flag", ["--tool-parser-plugin", "--reasoning-parser-plugin"])
def test_a_plugin_must_be_a_file(flag, tmp_path):
    with pytest.raises(ConfigError, match=flag):
        front(flag, str(tmp_path / "none.py"))
    file = tmp_path / "plugin.py"
    file.write_text("")
    name = flag.replace("-plugin", "").replace("--tool-", "--tool-call-")
    settings = front(flag, str(file), name, "made_by_the_plugin")  # known where it is run
    assert getattr(settings, flag[2:].replace("-", "_")) == str(file)


def test_markers_of_thinking_budgets_in_either_spelling():
    for prefix in ("reasoning", "think"):
        text = f'{{"{prefix}_start_str": "<r>", "{prefix}_end_str": "</r>"}}'
        settings = front("--reasoning-config", text)
        assert (settings.reasoning_start, settings.reasoning_end) == ("<r>", "</r>")
    settings = front("--reasoning-config.reasoning_end_str", "</r>")
    assert (settings.reasoning_start, settings.reasoning_end) == (None, "</r>")


@pytest.mark.parametrize(
    ("flag", "text", "word"),
    [
        ("--reasoning-config", '{"reasoning_start_str": "<r>"}', "reasoning_end_str"),
        ("--reasoning-config", '{"end": "</r>"}', "end"),
        ("--reasoning-config", '{"reasoning_end_str": ""}', "empty"),
        ("--reasoning-config", "[]", "object"),
        ("--reasoning-effort-budgets", '{"low": -1}', "low"),
        ("--reasoning-effort-budgets", '{"low": true}', "low"),
        ("--reasoning-effort-budgets", '{"lowest": 1}', "lowest"),
        ("--reasoning-effort-budgets", "3", "object"),
    ],
)
def test_values_that_do_not_fit(flag, text, word):
    with pytest.raises(ConfigError, match=word) as caught:
        front(flag, text)
    assert flag in str(caught.value)
    assert caught.value.exit_code == 2


def test_budgets_of_efforts():
    settings = front("--reasoning-effort-budgets", '{"low": 0, "high": 512}')
    assert settings.reasoning_effort_budgets == {"low": 0, "high": 512}


def test_the_environment_can_ask_for_strict_calls():
    strict = {"VLLM_ENFORCE_STRICT_TOOL_CALLING": "1"}
    assert front(env=strict).tool_strict_level == "parameter"
    assert front(env={"VLLM_ENFORCE_STRICT_TOOL_CALLING": "0"}).tool_strict_level == "auto"
