"""Grammar flags: their spellings, what they contradict, and engines that are not installed."""

import importlib.util

import pytest

from ortloom.commands.serve import make_plan, parse
from ortloom.commands.structured_outputs import with_reasoning_flags
from ortloom.config import StructuredOutputsConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table

CONFIG = "--structured-outputs-config"
TABLE = flag_table()


def plan(*tokens):
    return make_plan(["m", *tokens], read_environment({}), flag_table())[1]


def config(*tokens):
    return plan(*tokens).config.structured_outputs


@pytest.fixture
def installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)


@pytest.fixture
def missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_defaults():
    assert config() == StructuredOutputsConfig()
    assert config(CONFIG, "{}") == StructuredOutputsConfig()
    assert config(f"{CONFIG}.backend", "auto") == StructuredOutputsConfig()


@pytest.mark.parametrize(
    ("tokens", "fields"),
    [
        ([CONFIG, '{"backend": "guidance"}'], {"backend": "guidance"}),
        ([f"{CONFIG}.backend", "xgrammar"], {"backend": "xgrammar"}),
        (["--guided-decoding-backend", "outlines"], {"backend": "outlines"}),
        (["--guided_decoding_backend", "lm-format-enforcer"], {"backend": "lm-format-enforcer"}),
        ([f"{CONFIG}.disable_any_whitespace", "true"], {"disable_any_whitespace": True}),
        (["--guided-decoding-disable-any-whitespace"], {"disable_any_whitespace": True}),
        (
            [CONFIG, '{"disable_additional_properties": true}'],
            {"disable_additional_properties": True},
        ),
        (
            ["--guided-decoding-disable-additional-properties"],
            {"disable_additional_properties": True},
        ),
        (["--enable-jump-forward"], {"jump_forward": True}),
    ],
)
def test_what_is_asked_for_is_set_and_loaded_early(installed, tokens, fields):
    assert config(*tokens) == StructuredOutputsConfig(**fields, load_early=True)


def test_jump_forward_can_be_switched_off():
    assert not config("--disable-jump-forward").jump_forward


@pytest.mark.parametrize(
    ("value", "tokens", "jump", "lines"),
    [
        ("1", (), True, 0),
        ("on", (), True, 0),
        ("false", (), False, 0),
        ("", ("--enable-jump-forward",), True, 0),
        ("0", ("--enable-jump-forward",), False, 1),
        ("1", ("--disable-jump-forward",), True, 1),
        ("1", ("--enable-jump-forward",), True, 0),
    ],
)
def test_the_variable_wins_over_the_flag_and_says_so(value, tokens, jump, lines):
    env = read_environment({"VT_ENABLE_JUMP_FORWARD": value})
    made = make_plan(["m", *tokens], env, TABLE)[1]
    assert made.config.structured_outputs.jump_forward == jump
    assert made.config.structured_outputs.load_early == jump
    assert len(made.notices) == lines
    assert all("VT_ENABLE_JUMP_FORWARD wins over the flag" in line for line in made.notices)


def test_other_words_of_the_variable_are_refused():
    with pytest.raises(ConfigError, match="VT_ENABLE_JUMP_FORWARD"):
        read_environment({"VT_ENABLE_JUMP_FORWARD": "perhaps"})


@pytest.mark.parametrize("key", ["disable_fallback", "enable_in_reasoning"])
def test_keys_without_effect_say_so(key):
    (line,) = plan(f"{CONFIG}.{key}", "true").notices
    assert key in line
    assert plan(f"{CONFIG}.{key}", "false").notices == ()


def test_the_old_fallback_switch_says_so():
    (line,) = plan("--guided-decoding-disable-fallback").notices
    assert "auto never tries another" in line


def test_gumbel_noise_is_not_drawn():
    (line,) = plan("--use-fp64-gumbel").notices
    assert "Gumbel" in line


def test_embeddings_are_refused_by_the_missing_part():
    with pytest.raises(ConfigError, match="input for embeddings"):
        plan("--enable-prompt-embeds")


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        ([f"{CONFIG}.backend", "frob"], "must be one of"),
        ([f"{CONFIG}.frob", "1"], "unknown key 'frob'"),
        ([f"{CONFIG}.disable_any_whitespace", "perhaps"], "must be true or false"),
        (
            [f"{CONFIG}.backend", "outlines", "--guided-decoding-backend", "xgrammar"],
            "contradicts",
        ),
        (
            [f"{CONFIG}.backend", "lm-format-enforcer", f"{CONFIG}.disable_any_whitespace", "true"],
            "disable_any_whitespace",
        ),
    ],
)
def test_refused(installed, tokens, text):
    with pytest.raises(ConfigError, match=text):
        plan(*tokens)


@pytest.mark.parametrize(
    ("backend", "package"),
    [
        ("xgrammar", "xgrammar"),
        ("outlines", "outlines-core"),
        ("lm-format-enforcer", "lm-format-enforcer"),
    ],
)
def test_an_engine_that_is_not_installed_stops_the_start(missing, backend, package):
    with pytest.raises(ConfigError, match=f"pip install {package}$"):
        plan(f"{CONFIG}.backend", backend)


def test_logits_processors_and_their_pattern():
    got = plan("--logits-processors", "a.b:C", "d.E", "--logits-processor-pattern", "a.*").config
    assert got.model.logits_processors == ("a.b:C", "d.E")
    assert got.model.logits_processor_pattern == "a.*"


def test_reasoning_members_are_flags_of_their_own():
    args = parse(["m", f"{CONFIG}.reasoning_parser", "x", f"{CONFIG}.backend", "auto"], TABLE)
    moved = with_reasoning_flags(args, TABLE)
    assert moved.get("--reasoning-parser") == "x"
    assert moved.get(CONFIG) == {"backend": "auto"}
    unset = parse(["m", CONFIG, '{"reasoning_parser": ""}'], TABLE)
    assert "--reasoning-parser" not in with_reasoning_flags(unset, TABLE).passed


def test_two_reasoning_parsers_contradict():
    tokens = ["m", f"{CONFIG}.reasoning_parser", "x", "--reasoning-parser", "y"]
    with pytest.raises(ConfigError, match="contradicts --reasoning-parser"):
        with_reasoning_flags(parse(tokens, TABLE), TABLE)
