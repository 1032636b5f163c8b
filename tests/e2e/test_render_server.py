"""`ortloom launch render`: a server that never starts an engine."""

import sys
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def render_server(demo_bundle):
    server = served.Served(demo_bundle, "--served-model-name", "m", "--max-model-len", "512")
    at = server.command.index("serve")
    server.command[at : at + 1] = ["launch", "render"]
    with server:
        yield server


def test_it_renders_and_tokenises(render_server):
    client = render_server.client
    rendered = client.post("/v1/chat/completions/render", json={"messages": HI}).json()
    tokens = client.post("/tokenize", json={"messages": HI}).json()
    assert rendered["token_ids"] == tokens["tokens"]
    assert rendered["sampling_params"]["max_tokens"] == 512 - tokens["count"]
    (completion,) = client.post("/v1/completions/render", json={"prompt": "hi"}).json()
    text = client.post("/detokenize", json={"tokens": completion["token_ids"]}).json()
    assert text == {"prompt": "hi"}
    assert client.get("/v1/models").json()["data"][0]["max_model_len"] == 512
    assert client.get("/metrics").status_code == 200


def test_it_derenders(render_server):
    client = render_server.client
    ids = client.post("/tokenize", json={"prompt": "The sea"}).json()["tokens"]
    choice = {"index": 0, "token_ids": ids, "finish_reason": "length"}
    asked = {"generate_response": {"choices": [choice]}, "prompt_tokens": 4}
    reply = client.post("/v1/chat/completions/derender", json=asked).json()
    assert reply["choices"][0]["message"]["content"] == "The sea"
    assert reply["usage"]["total_tokens"] == 4 + len(ids)


def test_it_generates_nothing_and_has_no_engine(render_server):
    for path in ("/v1/completions", "/v1/chat/completions", "/inference/v1/generate"):
        assert render_server.client.post(path, json={}).status_code == 404
    pids = render_server.children()
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids]
    assert any(b"ortloom.server.front" in command for command in commands)
    assert not any(b"engine_process" in command for command in commands)
    assert render_server.stop() == 0


@pytest.mark.parametrize(("arguments", "code"), [((), 0), (("--help",), 0), (("nonsense",), 2)])
def test_the_command_itself(arguments, code):
    done = served.run_cli("launch", *arguments)
    assert done.returncode == code
    assert "render" in done.stdout + done.stderr
