"""`ortloom chat` and `ortloom complete` against a real server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from serving import KEY, Server, free_port

ANSWER = "\ufffd" * 4  # what the model that counts says is no text


@pytest.fixture(scope="module")
def brief(bundle):
    """A server whose answers have four tokens."""
    with Server(bundle, api_keys=(KEY,), max_new_tokens=4) as running:
        yield running


def ortloom(*arguments, text=None, **env):
    environ = {**os.environ, "OPENAI_API_KEY": KEY}
    return subprocess.run(
        [sys.executable, "-m", "ortloom", *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        env={**environ, **env},
        check=False,
    )


def url(server):
    return f"--url={server.url}/v1"


def test_a_conversation_keeps_what_was_said(brief):
    before = brief.metric("vllm:prompt_tokens_total")
    done = ortloom("chat", url(brief), "--system-prompt", "S", text="ab\n\ncd\n")
    assert done.returncode == 0, done.stderr
    first, _, rest = done.stdout.partition("\n")
    assert first == "Using model: tiny"
    assert rest.count("> ") == 4  # two messages, an empty line, the end
    assert rest.count(f"> {ANSWER}\n") == 2
    # the template: <system>S<user>ab<assistant>, then with the answer and the next message
    head = len("<system>S<user>ab<assistant>")
    more = head + len(ANSWER.encode()) + len("<user>cd<assistant>")
    assert brief.metric("vllm:prompt_tokens_total") - before == head + more


def test_one_text_and_its_numbers(brief):
    done = ortloom("complete", url(brief), "--max-tokens", "2", "--stats", "-q", "ab", "cd")
    assert done.returncode == 0, done.stderr
    answer, stats, end = done.stdout.split("\n")
    assert answer == ANSWER[:2]
    assert re.fullmatch(r"TTFT: \d+\.\d ms, \d+\.\d\d tokens/s \(2 tokens\)", stats)
    assert end == ""


def test_errors_are_one_line_each(brief):
    done = ortloom("complete", url(brief), "--model-name", "other", text="a\nb\n")
    assert done.returncode == 0
    assert done.stderr.count("error: 404: ") == 2
    done = ortloom("chat", url(brief), "--model-name", "other", "-q", "a")
    assert done.returncode == 1
    assert done.stderr.startswith("ortloom chat: error: 404: ")
    done = ortloom("chat", f"--url=http://127.0.0.1:{free_port()}/v1", "-q", "a")
    assert done.returncode == 1
    assert "cannot reach http://127.0.0.1:" in done.stderr
    for arguments in (
        ["chat", "--max-tokens", "3"],
        ["complete", "--max-tokens", "0"],
        ["chat", "x"],
    ):
        assert ortloom(*arguments).returncode == 2


@pytest.mark.parametrize("env", [True, False])
def test_the_key(brief, tmp_path, env):
    options = tmp_path / "c.yaml"
    options.write_text(f"url: {brief.url}/v1\nmax-tokens: 2\n")
    asked = ["complete", "--config", str(options), "-q", "ab"]
    done = ortloom(*asked) if env else ortloom(*asked, "--api-key", KEY, OPENAI_API_KEY="no")
    assert (done.returncode, done.stdout) == (0, ANSWER[:2] + "\n"), done.stderr
    done = ortloom(*asked, OPENAI_API_KEY="")
    assert done.returncode == 1
    assert "401: " in done.stderr
    assert KEY not in done.stderr


def test_the_key_is_no_argument_others_can_read(brief):
    command = [sys.executable, "-m", "ortloom", "complete", url(brief), "--api-key", KEY]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "Using model: tiny\n"
        assert KEY.encode() not in Path(f"/proc/{process.pid}/cmdline").read_bytes()
        process.stdin.close()
        assert process.wait(60) == 0
