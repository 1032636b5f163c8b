"""Every row of the flag table is accepted at its default and never silently ignored beside it."""

import json

import pytest

from ortloom.commands.serve import make_plan, parse
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import GROUPS, flag_table

TABLE = flag_table()
ROWS = {flag.name: flag for flag in TABLE.flags}
NOT_WORKING = [flag.name for flag in TABLE.flags if flag.class_ != "works"]


def judge(tokens):
    return make_plan(["m", *tokens], read_environment({}), TABLE)[1].notices


def tokens_of(flag, value):
    """The command line that gives a flag a value; None where it cannot be said."""
    if flag.kind == "flag":
        return [flag.name] if value else []
    if flag.kind == "switch":
        return None if value is None else [flag.name if value else flag.negative]
    if value is None:
        return [f"{flag.name}=None"] if flag.kind not in ("list", "ints") else None
    if flag.kind == "append":
        return [token for item in value for token in (flag.name, item)]
    if flag.kind in ("list", "ints"):
        return [flag.name, *map(str, value)] if value else None
    if flag.kind in ("json", "jsonlist"):
        return [f"{flag.name}={json.dumps(value)}"]
    return [f"{flag.name}={value}"]


def another(flag):
    """A value that is neither the default nor in `same`."""
    match flag.kind:
        case "flag":
            return True
        case "switch":
            value = not flag.default
            return value if not flag.is_default(value) else not value
        case "choice":
            return next(choice for choice in flag.choices if not flag.is_default(choice))
        case "int" if flag.choices:
            return next(int(c) for c in flag.choices if not flag.is_default(int(c)))
        case "int" | "size" | "context":
            return 12345
        case "float":
            return 0.123
        case "list" | "append":
            return ["x"]
        case "ints":
            return [3]
        case "json":
            return {"x": 1}
        case "jsonlist":
            return ["x"]
        case _:
            return "something"


def test_names_are_unique_and_groups_known():
    names = [name for flag in TABLE.flags for name in (flag.name, flag.negative, *flag.aliases)]
    names = [name for name in names if name]
    assert len(names) == len(set(names))
    assert {flag.group for flag in TABLE.flags} == set(GROUPS)
    for flag in TABLE.flags:
        assert bool(flag.help) == (flag.class_ == "works"), flag.name
        assert flag.class_ == "works" or TABLE.reason(flag)
        if flag.kind == "choice":
            assert flag.choices, flag.name
            assert flag.default is None or flag.default in flag.choices, flag.name


@pytest.mark.parametrize("name", list(ROWS))
def test_the_default_is_accepted(name):
    flag = ROWS[name]
    tokens = tokens_of(flag, flag.default)
    if tokens is None or name in ("--config", "--model"):
        return
    notices = [line for line in judge(tokens) if "memory-utilization" not in line]
    assert len(notices) == (1 if flag.class_ == "inert" and tokens else 0)


SUPPORTED_BY = {
    "--enable-log-outputs": ["--enable-log-requests"],
    "--enable-auto-tool-choice": ["--tool-call-parser", "hermes"],
    "--return-sampling-mask": ["--logprobs-mode", "processed_logprobs"],
    "--per-request-spec-decode-metrics": ["--speculative-config", "{}"],
    "--lora-modules": ["--enable-lora"],
    "--max-num-active-seqs": ["--max-num-seqs", "20000"],
    "--ssl-keyfile": ["--ssl-certfile", "x"],
    "--ssl-certfile": ["--ssl-keyfile", "x"],
}


@pytest.mark.parametrize("name", NOT_WORKING)
def test_another_value_is_refused_or_noticed(name):
    flag = ROWS[name]
    tokens = tokens_of(flag, another(flag)) + SUPPORTED_BY.get(name, [])
    if flag.class_ in ("inert", "notice"):
        deprecated = f"{name} is deprecated: use {flag.instead}"
        (line,) = [line for line in judge(tokens) if line != deprecated]
        assert line.startswith(tokens[0].partition("=")[0] + ": taken only so that published")
        assert line.endswith(TABLE.reason(flag))
        return
    with pytest.raises(ConfigError) as caught:
        judge(tokens)
    assert caught.value.exit_code == 2
    assert TABLE.reason(flag) in str(caught.value)
    words = "not in this build yet" if flag.class_ == "later" else "cannot be had here"
    assert words in str(caught.value)


@pytest.mark.parametrize("name", [flag.name for flag in TABLE.flags if flag.same])
def test_values_that_ask_for_what_happens_anyway(name):
    flag = ROWS[name]
    for value in flag.same:
        assert judge(tokens_of(flag, value)) == ()


def test_every_flag_takes_its_aliases():
    for flag in TABLE.flags:
        for alias in flag.aliases:
            tokens = tokens_of(flag, another(flag))
            tokens = [alias + tokens[0].removeprefix(flag.name), *tokens[1:]]
            (entry,) = parse(["m", *tokens], TABLE).passed.values()
            assert entry.flag is flag
            assert entry.typed == alias
