"""The parsers a front chooses at its start."""

import pytest

from ortloom.config import FrontConfig
from ortloom.errors import ConfigError
from ortloom.models.chat_template import ChatTemplate
from ortloom.models.reasoning_parsers.registry import reasoning_parser
from ortloom.models.tool_parsers.registry import tool_parser
from ortloom.server.call_forms import CALL_FORMS
from ortloom.server.output_parsers import OutputParsers, load_parsers


class Words:
    """A tokenizer of two added tokens; anything else is one id a character."""

    added = {"<think>": 900, "</think>": 901, "<eos>": 902}
    special_tokens = {"eos_token": "<eos>", "unk_token": "unknown"}

    def encode(self, text, add_special_tokens):
        assert not add_special_tokens
        if text in self.added:
            return [self.added[text]]
        for end in ("</think>",):
            if text.endswith(end):
                return [*self.encode(text[: -len(end)], False), self.added[end]]
        return [ord(c) for c in text]

    def is_added(self, token):
        return token >= 900


def load(template=None, **settings):
    made = None if template is None else ChatTemplate({"default": template}, {})
    return load_parsers(FrontConfig(**settings), Words(), made)


def test_nothing_is_chosen_without_flags():
    assert load() == OutputParsers(hidden=(902,))
    assert not load().any


def test_names_give_classes():
    chosen = load(tool_call_parser="hermes", enable_auto_tool_choice=True, reasoning_parser="qwen3")
    assert chosen.tool is tool_parser("hermes")
    assert chosen.auto
    assert chosen.reasoning is reasoning_parser("qwen3")
    assert chosen.any
    with pytest.raises(ConfigError, match="hermes"):
        load(tool_call_parser="hermez")


def test_auto_is_told_from_the_template():
    settings = {"tool_call_parser": "auto", "reasoning_parser": "auto"}
    mistral = load("[TOOL_CALLS] [THINK]", **settings)
    assert mistral.tool is tool_parser("mistral")
    assert mistral.reasoning is reasoning_parser("mistral")
    nothing = load("plain", **settings)
    assert nothing.tool is tool_parser("hermes")
    assert nothing.reasoning is None


def test_a_plugin_adds_names(tmp_path):
    file = tmp_path / "plugin.py"
    file.write_text(
        "from ortloom.models.tool_parsers.hermes import HermesParser\n"
        "from ortloom.models.tool_parsers.registry import register\n"
        "class Plugged(HermesParser): pass\n"
        "register('plugged', Plugged)\n"
    )
    chosen = load(tool_call_parser="plugged", tool_parser_plugin=str(file))
    assert chosen.tool.__name__ == "Plugged"
    thinking = tmp_path / "thinking.py"
    thinking.write_text(
        "from ortloom.models.reasoning_parsers.registry import reasoning_parser, register\n"
        "register('pondering', type('Pondering', (reasoning_parser('qwen3'),), {}))\n"
    )
    chosen = load(reasoning_parser="pondering", reasoning_parser_plugin=str(thinking))
    assert chosen.reasoning.__name__ == "Pondering"
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0")
    with pytest.raises(ConfigError, match=r"--reasoning-parser-plugin.*ZeroDivisionError"):
        load(reasoning_parser_plugin=str(broken))


def test_markers_are_told_by_id_where_they_are_tokens():
    markers = load(reasoning_parser="deepseek_r1").markers
    assert (markers.start, markers.end) == ("<think>", "</think>")
    assert (markers.start_token, markers.end_token) == (900, 901)
    assert markers.closing == (901,)
    text = load(reasoning_parser="seed_oss").markers
    assert (text.start_token, text.end_token) == (None, None)
    assert bytes(text.closing).decode() == text.end


def test_a_closing_sentence_must_hold_the_end():
    closing = load(reasoning_parser="deepseek_r1", reasoning_end="Stop.</think>").markers.closing
    assert closing == (*b"Stop.", 901)
    with pytest.raises(ConfigError, match="--reasoning-config"):
        load(reasoning_parser="deepseek_r1", reasoning_end="Stop.")
    alone = load(reasoning_start="<r>", reasoning_end="</r>")
    assert alone.reasoning is None
    assert (alone.markers.start, alone.markers.end) == ("<r>", "</r>")


def test_strict_calls_need_a_format_that_can_be_enforced():
    chosen = load(tool_call_parser="hermes", tool_strict_level="function")
    assert (chosen.form is not None, chosen.strict) == (True, "function")
    with pytest.raises(ConfigError, match=r"--tool-strict-level.*hermes"):
        load(tool_call_parser="pythonic", tool_strict_level="function")


@pytest.mark.parametrize("name", sorted(CALL_FORMS))
def test_parsers_read_the_forms_that_are_enforced(name):
    form = CALL_FORMS[name]
    text = form.begin("get_w") + '{"city": "Oslo"}' + form.after
    assert text.startswith(form.trigger)
    (call,) = tool_parser(name)([]).parse(text).calls
    assert (call.name, call.arguments) == ("get_w", '{"city": "Oslo"}')
