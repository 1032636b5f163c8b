"""Flags and variables that the server and other commands share mean the same in all of them."""

import pytest

from ortloom.commands import run_batch
from ortloom.commands.bench import latency, throughput
from ortloom.errors import OrtloomError

COMMANDS = {
    "run-batch": (run_batch.run, ("-i", "/missing", "-o", "/tmp/x")),
    "latency": (latency.run, ()),
    "throughput": (throughput.run, ("--num-prompts", "1")),
}


@pytest.fixture(params=COMMANDS)
def failure(request, capsys):
    """Runs a command that cannot go far; its error and what it printed."""
    run, needed = COMMANDS[request.param]

    def ask(*tokens):
        with pytest.raises(OrtloomError) as caught:
            run(["--model", "/missing", *needed, *tokens])
        return str(caught.value), capsys.readouterr().err

    return ask


def test_the_model_is_an_option_there(failure):
    error, printed = failure()
    assert "/missing" in error
    assert "deprecated" not in printed


@pytest.mark.parametrize(
    ("tokens", "text"),
    [
        (["--additional-config.port", "1"], "unknown member 'port'"),
        (["--structured-outputs-config.reasoning_parser", "nobody"], "no parser 'nobody'"),
        (["--kv-cache-metrics-sample", "0.5"], "needs --kv-cache-metrics"),
        (["--quantization", "awq"], "'awq' cannot be had here"),
        (["--quantization", "nonsense"], "invalid choice: 'nonsense'"),
        (["--tensor-parallel-size", "2"], "not in this build yet"),
    ],
)
def test_no_flag_is_passed_over(failure, tokens, text):
    assert text in failure(*tokens)[0]


def test_no_variable_is_passed_over(failure, monkeypatch):
    monkeypatch.setenv("VLLM_NO_SUCH_NAME", "1")
    monkeypatch.setenv("VLLM_IMAGE_FETCH_TIMEOUT", "1")
    printed = failure()[1]
    assert "unknown environment variable VLLM_NO_SUCH_NAME" in printed
    assert "VLLM_IMAGE_FETCH_TIMEOUT is set; it is known, but not honoured" in printed
