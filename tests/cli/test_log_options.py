"""The flags and variables about logging: which wins, what is refused, and what a process does."""

import json
import os
import subprocess
import sys

import msgspec
import pytest

from ortloom.commands.serve import make_plan
from ortloom.config import LogConfig
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table
from ortloom.log_setup import translated

# as published for vllm serve: its own logger and formatter, uvicorn's access logger and formatter
PUBLISHED = {
    "version": 1,
    "formatters": {
        "vllm": {
            "class": "vllm.logging_utils.NewLineFormatter",
            "format": "%(levelname)s [%(fileinfo)s:%(lineno)d] %(message)s",
        },
        "access": {
            "()": "uvicorn.logging.AccessFormatter",
            "fmt": "%(levelprefix)s %(client_addr)s - %(request_line)s %(status_code)s",
            "use_colors": False,
        },
    },
    "handlers": {
        "vllm": {
            "class": "logging.StreamHandler",
            "formatter": "vllm",
            "stream": "ext://sys.stdout",
        },
        "access": {
            "class": "logging.StreamHandler",
            "formatter": "access",
            "stream": "ext://sys.stdout",
        },
    },
    "loggers": {
        "vllm": {"handlers": ["vllm"], "level": "DEBUG", "propagate": False},
        "uvicorn.access": {"handlers": ["access"], "level": "INFO", "propagate": False},
    },
}


def log(*tokens, **env):
    return make_plan(["m", *tokens], read_environment(env), flag_table())[1].config.log


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "logging.json"
    path.write_text(json.dumps(PUBLISHED))
    return str(path)


def test_later_words_win_over_earlier_ones(file):
    dotted = ("--logging-config.log_level", "error", "--logging-config.formatter", "json")
    for tokens, env, level, wins in (
        ((), {"VLLM_LOGGING_LEVEL": "debug"}, "DEBUG", False),
        (dotted, {"VLLM_LOGGING_LEVEL": "debug"}, "ERROR", False),
        ((*dotted, "-v"), {}, "DEBUG", False),
        ((*dotted, "-v", "--log-level", "WARNING"), {}, "WARNING", True),
    ):
        made = log(*tokens, **env)
        assert (made.level, made.level_wins) == (level, wins), tokens
    assert log(*dotted).formatter == "json"
    assert log("--log-config-file", file).python_config == PUBLISHED
    assert log(VLLM_LOGGING_CONFIG_PATH=file).python_config == PUBLISHED
    assert log("--logging-config.pylogging_config_file", file).python_config == PUBLISHED
    assert log().python_config is None
    assert not log(VLLM_CONFIGURE_LOGGING="0").configure
    assert log("--logging-config.configure_logging", "true", VLLM_CONFIGURE_LOGGING="0").configure


def test_switches_reach_the_configuration():
    asked = ("--enable-log-requests", "--enable-log-outputs", "--no-enable-log-deltas")
    made = log(*asked, "--log-error-stack", "--enable-logging-iteration-details")
    assert made.log_outputs
    assert not made.log_deltas
    assert made.error_stack
    assert made.iteration_details
    assert not log().error_stack
    assert log(VLLM_SERVER_DEV_MODE="1").error_stack
    assert log(VLLM_DEBUG_LOG_API_SERVER_RESPONSE="1").reply_bodies
    assert not log().reply_bodies
    assert not log("--no-log-error-stack", VLLM_SERVER_DEV_MODE="1").error_stack


@pytest.mark.parametrize(
    ("tokens", "env", "words"),
    [
        (["--log-config-file", "/nowhere"], {}, "--log-config-file: cannot read '/nowhere'"),
        ([], {"VLLM_LOGGING_CONFIG_PATH": __file__}, "VLLM_LOGGING_CONFIG_PATH: .* is not JSON"),
        (["--logging-config.log_level", "loud"], {}, "invalid log_level 'loud'"),
        (["--logging-config.formatter", "xml"], {}, "--logging-config: .*xml"),
        (["--logging-config.colour", "red"], {}, "--logging-config: .*colour"),
        ([], {"VLLM_LOGGING_COLOR": "red"}, "VLLM_LOGGING_COLOR"),
        ([], {"VLLM_CONFIGURE_LOGGING": "no"}, "VLLM_CONFIGURE_LOGGING"),
        (
            ["--logging-config.configure_logging", "false", "--log-config-file", "/x"],
            {},
            "is not to be set up",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tokens, env, words):
    with pytest.raises(ConfigError, match=words):
        log(*tokens, **env)


def run(config, code, **env):
    """Standard output and error of a process that logs by a configuration."""
    start = (
        "import logging, sys, msgspec; from ortloom.config import LogConfig; "
        "from ortloom.log_setup import set_up_logging; "
        "set_up_logging(msgspec.json.decode(sys.argv[1], type=LogConfig), 'front-0'); "
    )
    done = subprocess.run(
        [sys.executable, "-c", start + code, msgspec.json.encode(config).decode()],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **env},
    )
    return done.stdout, done.stderr


SPEAK = (
    "log = logging.getLogger('ortloom.server'); log.debug('low'); log.warning('one\\ntwo'); "
    "logging.getLogger('ortloom.access').info('x', extra={'client_addr': '1.2.3.4:5', "
    "'request_line': 'GET /x HTTP/1.1', 'status_code': 200})"
)


def test_a_configuration_of_vllm_works_as_it_is():
    out, err = run(LogConfig(python_config=PUBLISHED), SPEAK)
    low, one, two, access = out.splitlines()
    assert low.startswith("DEBUG [")
    assert low.endswith("] low")
    assert one.endswith("] one")
    assert two == one.removesuffix("one") + "two"
    assert access == "INFO: 1.2.3.4:5 - GET /x HTTP/1.1 200"
    assert err == ""
    out, _ = run(LogConfig(python_config=PUBLISHED, level="WARNING", level_wins=True), SPEAK)
    assert "low" not in out


def test_our_own_names_win_over_theirs():
    config = {"version": 1, "loggers": {"vllm": {"level": "DEBUG"}, "ortloom": {"level": "ERROR"}}}
    made = translated(config)
    assert made["loggers"] == {"ortloom": {"level": "ERROR"}}
    assert made["disable_existing_loggers"] is False


def test_a_bad_configuration_is_one_line():
    bad = {"version": 1, "handlers": {"a": {"class": "no.such.Handler"}}}
    _, err = run(LogConfig(python_config=bad), "")
    assert err.splitlines()[-1].startswith("ortloom.errors.ConfigError: the logging configuration")


def test_json_lines():
    code = SPEAK + "; logging.getLogger('ortloom').error('é', exc_info=ValueError('no'))"
    _, err = run(LogConfig(formatter="json", level="DEBUG"), code)
    lines = [json.loads(line) for line in err.splitlines()]
    assert [line["message"] for line in lines] == ["low", "one\ntwo", "x", "é"]
    assert lines[1]["levelname"] == "WARNING"
    assert lines[1]["name"] == "ortloom.server"
    assert lines[1]["vllm_process_name"] == "front-0"
    assert {"asctime", "process", "processName"} <= lines[1].keys()
    assert "ValueError: no" in lines[3]["exc_info"]


def test_prefix_colour_and_hands_off():
    _, err = run(LogConfig(prefix="100% ", color=True), SPEAK)
    assert err.startswith("100% 20")
    assert "\x1b[33mWARNING\x1b[0m front-0" in err
    _, err = run(LogConfig(), SPEAK)
    assert "\x1b" not in err
    _, err = run(LogConfig(configure=False), SPEAK)
    assert err == "one\ntwo\n"


@pytest.mark.parametrize(
    ("tokens", "env", "least"),
    [
        ((), {}, "info"),
        (("--log-level", "DEBUG"), {}, "debug"),
        (("-v",), {}, "debug"),
        (("--uvicorn-log-level", "trace"), {}, "debug"),
        (("--uvicorn-log-level", "error"), {}, "error"),
        (("--logging-config.log_level", "error"), {}, "error"),
        ((), {"VLLM_LOGGING_LEVEL": "warning"}, "warning"),
    ],
)
def test_the_level_decides_which_lines_there_are(tokens, env, least):
    levels = ("debug", "info", "warning", "error")
    code = "".join(f"logging.getLogger('ortloom.x').{name}('{name}'); " for name in levels)
    _, err = run(log(*tokens, **env), code)
    assert [line.split()[-1] for line in err.splitlines()] == list(levels[levels.index(least) :])
