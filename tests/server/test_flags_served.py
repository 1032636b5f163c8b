"""Flags and variables as typed on a command line, each seen to change what a server does.

Three servers over the same bundle: one without flags, one with many, one with many variables. What
is asserted of one is asserted not to be so of the first.
"""

import json
import time
from datetime import datetime
from itertools import pairwise

import pytest
from serving import Server, body, until
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
TEMPLATE = (
    "{{ 'parts' if messages[0].content is not string else 'text' }}"
    "|{{ flavour | default('plain') }}"
    "|{{ enable_thinking | default('unset') }}"
)


class Typed(Server):
    """`ortloom serve` with the fake engine and these arguments."""

    def __init__(self, *tokens, env=None):
        super().__init__("unused", env=env, module="by_flags")
        self.command = [*self.command[:-1], *map(str, tokens)]
        self.command += ["--host", "127.0.0.1", "--port", str(self.port)]

    def chat(self, **fields):
        return self.client.post(CHAT, json={"messages": MESSAGES, "max_tokens": 2, **fields})

    def prompt(self, **fields):
        """The prompt that a conversation becomes."""
        ids = self.client.post("/tokenize", json={"messages": MESSAGES, **fields}).json()["tokens"]
        return self.client.post("/detokenize", json={"tokens": ids}).json()["prompt"]


@pytest.fixture(scope="module")
def plain(bundle):
    with Typed("--model", bundle) as running:
        yield running


@pytest.fixture(scope="module")
def other_tokenizer(tmp_path_factory):
    """A folder with a tokenizer that numbers the bytes from the other end."""
    folder = tmp_path_factory.mktemp("tokenizer")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet(), reverse=True)
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def flagged(bundle, other_tokenizer):
    tokens = [
        *("--served-model-name", "first", "second"),
        *("--tokenizer", other_tokenizer),
        *("--chat-template", TEMPLATE),
        *("--chat-template-content-format", "openai"),
        *("--default-chat-template-kwargs.flavour", "salt"),
        *("--enable-thinking", "--trust-request-chat-template"),
        *("--response-role", "bot"),
        *("--allowed-origins", '["http://a.example"]', "--allow-credentials"),
        *("--allowed-methods", '["GET"]', "--allowed-headers", '["x-a"]'),
        "--disable-uvicorn-access-log",
        *("--enable-log-requests", "--enable-log-outputs", "--max-log-len", "3"),
        "--no-enable-log-deltas",
        "--log-error-stack",
        "--enable-force-include-usage",
        "--enable-prompt-tokens-details",
        "--enable-request-id-headers",
        "--enable-server-load-tracking",
        "--return-tokens-as-token-ids",
        *("--root-path", "/behind"),
        *("--h11-max-header-count", "20", "--h11-max-incomplete-event-size", "3000"),
        *("--generation-config", "vllm"),
        '--override-generation-config={"temperature": 0.25}',
        *("--max-logprobs", "3"),
        *("--fingerprint-mode", "custom", "--fingerprint-value", "mine"),
        "--disable-fastapi-docs",
        "--enable-tokenizer-info-endpoint",
        "--enable-scale-out",
        "--enable-logging-iteration-details",
        *("--limit-mm-per-prompt.image", "4"),
        "--no-disable-hybrid-kv-cache-manager",
        "--disable-radix-attention",  # which is --no-enable-prefix-caching
    ]
    with Typed(bundle, *tokens) as running:
        yield running


def test_the_model_may_be_an_option(plain, bundle):
    assert plain.client.get("/v1/models").json()["data"][0]["id"] == str(bundle)
    assert "--model is deprecated: use the model itself as the first word" in plain.text()


def test_served_names(plain, flagged, bundle):
    assert plain.chat().json()["model"] == str(bundle)
    reply = flagged.chat(model="second").json()
    assert reply["model"] == "first"
    assert flagged.chat(model=str(bundle)).status_code == 404


def test_a_tokenizer_of_another_folder(plain, flagged):
    texts = [
        server.client.post("/tokenize", json={"prompt": "ab"}).json()["tokens"]
        for server in (plain, flagged)
    ]
    assert texts[0] == [255 - token for token in texts[1]]


def test_templates_and_their_variables(plain, flagged):
    assert plain.prompt() == "<user>hi<assistant>"
    assert flagged.prompt() == "parts|salt|True"
    asked = {"chat_template_kwargs": {"flavour": "sugar", "enable_thinking": False}}
    assert flagged.prompt(**asked) == "parts|sugar|False"


def test_templates_of_requests_need_trust(plain, flagged):
    assert plain.chat(chat_template="x").status_code == 400
    assert flagged.chat(chat_template="x").json()["usage"]["prompt_tokens"] == 1


def test_the_role_of_replies(plain, flagged):
    assert plain.chat().json()["choices"][0]["message"]["role"] == "assistant"
    assert flagged.chat().json()["choices"][0]["message"]["role"] == "bot"
    chunk = flagged.chat(stream=True).text.partition("\n")[0].removeprefix("data: ")
    assert json.loads(chunk)["choices"][0]["delta"]["role"] == "bot"


def test_cross_origin_answers(plain, flagged):
    asked = {
        "origin": "http://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "x-b",
    }
    before = plain.client.options(CHAT, headers=asked).headers
    after = flagged.client.options(CHAT, headers=asked).headers
    name = "access-control-allow-"
    assert (before[name + "origin"], after[name + "origin"]) == ("*", "http://a.example")
    assert "POST" in before[name + "methods"]
    assert after[name + "methods"] == "GET"
    assert (before[name + "headers"], after[name + "headers"]) == ("x-b", "x-a")
    assert name + "credentials" not in before
    assert after[name + "credentials"] == "true"
    stranger = {**asked, "origin": "http://b.example"}
    assert flagged.client.options(CHAT, headers=stranger).status_code == 400


def test_access_lines_can_be_switched_off(plain, flagged):
    for server in (plain, flagged):
        assert server.client.get("/ping").status_code == 200
    until(lambda: '"GET /ping" 200' in plain.text())
    assert "ortloom.access" not in flagged.text()


def test_requests_and_outputs_are_logged_and_cut(plain, flagged):
    for server in (plain, flagged):
        server.client.post(COMPLETIONS, json={"prompt": "abcdef", "max_tokens": 5, "stream": True})
    until(lambda: "'abc'" in flagged.text())
    line = until(lambda: [x for x in flagged.text().splitlines() if "(streaming complete)" in x])
    assert "output_token_ids: [" in line[-1]
    assert line[-1].partition("output_token_ids: [")[2].partition("]")[0].count(",") == 2
    assert "'abcd" not in flagged.text()
    assert "(streaming delta)" not in flagged.text()
    assert "'abc" not in plain.text()


def test_errors_are_logged_with_their_stack(plain, flagged):
    for server in (plain, flagged):
        assert server.chat(temperature=-1).status_code == 400
    until(lambda: "Traceback" in flagged.text())
    assert "answer 400" not in plain.text()


def test_steps_are_logged(plain, flagged):
    flagged.chat()
    until(lambda: "Iteration(" in flagged.text())
    assert "Iteration(" not in plain.text()


def test_usage_of_streams_and_cached_tokens(plain, flagged):
    for _ in range(2):
        plain.chat()
    assert '"usage":{' not in plain.chat(stream=True).text
    assert '"usage":{' in flagged.chat(stream=True).text
    assert plain.chat().json()["usage"]["prompt_tokens_details"] is None
    assert flagged.chat().json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_prefix_sharing_can_be_switched_off(plain, flagged):
    for server in (plain, flagged):
        for _ in range(2):
            server.client.post(COMPLETIONS, json={"prompt": "a" * 64, "max_tokens": 1})
    assert plain.metric("vllm:prefix_cache_hits_total") >= 48
    assert flagged.metric("vllm:prefix_cache_hits_total") == 0


def test_request_ids_come_back(plain, flagged):
    asked = {"x-request-id": "mine-1"}
    assert "x-request-id" not in plain.client.get("/version", headers=asked).headers
    assert flagged.client.get("/version", headers=asked).headers["x-request-id"] == "mine-1"


def test_load_is_counted(plain, flagged):
    found = []
    for server in (plain, flagged):
        asked = {"prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        with server.client.stream("POST", COMPLETIONS, json=asked) as stream:
            lines = stream.iter_lines()
            assert next(lines).startswith("data: ")
            found.append(server.client.get("/load").json()["server_load"])
        server.idle()
    assert found == [0, 1]


def test_the_root_path_is_taken_off(plain, flagged):
    assert plain.client.get("/behind/version").status_code == 404
    assert flagged.client.get("/behind/version").status_code == 200


def test_limits_of_the_head(plain, flagged):
    many = {f"x-{number}": "1" for number in range(30)}
    large = {"x-large": "a" * 4000}
    for headers in (many, large):
        assert plain.client.get("/version", headers=headers).status_code == 200
        assert flagged.client.get("/version", headers=headers).status_code == 431


def test_sampling_defaults(plain, flagged):
    assert "sampling defaults: temperature=0.5" in plain.text()
    assert "sampling defaults: temperature=0.25" in flagged.text()


def test_the_cap_of_logprobs(plain, flagged):
    asked = {"prompt": "a", "max_tokens": 1, "logprobs": 5}
    refused = flagged.client.post(COMPLETIONS, json=asked)
    assert refused.status_code == 400
    assert "3" in refused.json()["error"]["message"]
    assert plain.client.post(COMPLETIONS, json=asked).status_code != 400


def test_the_fingerprint(plain, flagged):
    assert plain.chat().json()["system_fingerprint"].startswith("ortloom-")
    assert flagged.chat().json()["system_fingerprint"] == "mine"


@pytest.mark.parametrize(
    ("path", "without", "with_flag"),
    [("/docs", 200, 404), ("/openapi.json", 200, 404), ("/tokenizer_info", 404, 200)],
)
def test_routes_come_and_go(plain, flagged, path, without, with_flag):
    assert plain.client.get(path).status_code == without
    assert flagged.client.get(path).status_code == with_flag


def test_tokens_in_need_their_flag(plain, flagged):
    asked = {"token_ids": [97], "sampling_params": {"max_tokens": 1}}
    path = "/inference/v1/generate"
    assert plain.client.post(path, json=asked).status_code == 403
    assert flagged.client.post(path, json=asked).status_code == 200


def test_what_is_allowed_and_cannot_be_had_is_told(plain, flagged, varied):
    """Media: no limit makes a text model see; the line at start and the refusal say so."""
    line = "warning: --limit-mm-per-prompt: this build takes text only"
    assert line in flagged.text()
    assert line not in plain.text() + varied.text()
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    for server in (plain, flagged, varied):
        refused = server.chat(messages=[{"role": "user", "content": [part]}])
        assert refused.status_code == 400
        assert "at most 0 image(s)" in refused.json()["error"]["message"]
    assert "all kinds of layers share one KV layout" in flagged.text()


# ---- variables


@pytest.fixture(scope="module")
def varied(bundle, tmp_path_factory):
    env = {
        "VLLM_MAX_N_SEQUENCES": "2",
        "VLLM_MAX_COMPLETION_PROMPTS": "2",
        "VLLM_MAX_STOP_STRINGS": "1",
        "VLLM_MAX_NUM_BAD_WORDS": "1",
        "VT_SERVER_MAX_NEW_TOKENS": "5",
        "VLLM_SKIP_MODEL_NAME_VALIDATION": "1",
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "1",
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_ENABLE_RESPONSES_API_STORE": "1",
        "VLLM_ENABLE_SCALE_OUT_ENDPOINTS": "1",
        "VLLM_API_KEY": "from-the-environment",
        "VLLM_LOGGING_PREFIX": "[here] ",
        "VLLM_LOGGING_COLOR": "1",
        "VLLM_DISABLE_LOG_LOGO": "1",
        "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "1",
        "VLLM_LOG_STATS_INTERVAL": "0.2",
        "VLLM_COMPUTE_NANS_IN_LOGITS": "1",
        "VT_ENGINE_STEP_LOG": "1",
        "VLLM_IMAGE_FETCH_TIMEOUT": "5",
        "VLLM_NO_SUCH_NAME": "1",
    }
    tokens = ["--sse-keep-alive-interval", 1, "--language-model-only"]
    with Typed(bundle, *tokens, env=env) as running:
        running.client.headers["authorization"] = "Bearer from-the-environment"
        running.headers = dict(running.client.headers)
        yield running


def test_the_key_comes_from_the_environment(plain, varied):
    nobody = {"authorization": ""}
    assert plain.client.get("/v1/models", headers=nobody).status_code == 200
    assert varied.client.get("/v1/models", headers=nobody).status_code == 401
    assert varied.client.get("/v1/models").status_code == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 3, "temperature": 1},
        {"prompt": ["a", "b", "c"]},
        {"stop": ["x", "y"]},
        {"bad_words": ["x", "y"]},
    ],
)
def test_limits_of_requests(plain, varied, fields):
    asked = {"prompt": "a", "max_tokens": 1, **fields}
    assert plain.client.post(COMPLETIONS, json=asked).status_code == 200
    assert varied.client.post(COMPLETIONS, json=asked).status_code == 400


def test_the_ceiling_of_outputs(plain, varied):
    asked = {"prompt": "a", "max_tokens": 9, "ignore_eos": True}
    for server, tokens in ((plain, 9), (varied, 5)):
        usage = server.client.post(COMPLETIONS, json=asked).json()["usage"]
        assert usage["completion_tokens"] == tokens


def test_any_model_name(plain, varied):
    asked = {"prompt": "a", "max_tokens": 1, "model": "whatever"}
    assert plain.client.post(COMPLETIONS, json=asked).status_code == 404
    assert varied.client.post(COMPLETIONS, json=asked).status_code == 200


def test_idle_connections_are_closed(plain, varied):
    """Half a second after the request both are open; a good second later, one is."""
    with plain.connect() as long, varied.connect() as short:
        for sock, server in ((long, plain), (short, varied)):
            sock.sendall(server.request(path="/ping", method="GET", length=False))
            assert b"200" in sock.recv(4096)
            sock.settimeout(10)
        start = time.monotonic()
        assert short.recv(1) == b""
        assert time.monotonic() - start > 0.3
        long.setblocking(False)
        with pytest.raises(BlockingIOError):
            long.recv(1)


def test_more_routes(plain, varied):
    for path, without, with_variable in (
        ("/is_sleeping", 404, 200),
        ("/is_paused", 404, 200),
    ):
        assert plain.client.get(path).status_code == without
        assert varied.client.get(path).status_code == with_variable
    asked = {"token_ids": [97], "sampling_params": {"max_tokens": 1}}
    assert varied.client.post("/inference/v1/generate", json=asked).status_code == 200


def test_quiet_streams_are_kept_alive(plain, varied):
    """--sse-keep-alive-interval"""
    asked = {"prompt": "a", "max_tokens": 3, "stream": True}
    assert ": keep-alive" not in plain.client.post(COMPLETIONS, json=asked).text
    assert varied.client.post("/pause").status_code == 200
    with varied.client.stream("POST", COMPLETIONS, json=asked) as stream:
        lines = stream.iter_lines()
        assert next(lines) == ": keep-alive"
        assert varied.client.post("/resume").status_code == 200
        assert "data: [DONE]" in lines


def test_responses_are_kept(plain, varied):
    for server, status in ((plain, 404), (varied, 200)):
        made = server.client.post("/v1/responses", json={"input": "a", "max_output_tokens": 2})
        found = server.client.get(f"/v1/responses/{made.json()['id']}")
        assert found.status_code == status, found.text


def test_lines_of_the_log(plain, varied):
    varied.client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 5})
    text = until(lambda: varied.text() if "response_body=" in varied.text() else None)
    assert "[here] 20" in text
    assert "\x1b[" in text
    assert "ortloom version" not in text
    until(lambda: "1 requests, 1 tokens, 1 sampled, 0 preempted" in varied.text())
    before = plain.text()
    assert "ortloom version" in before
    for mark in ("[here]", "\x1b[", "response_body=", "preempted,"):
        assert mark not in before, mark


def test_statistics_come_as_often_as_asked(varied):
    """Ten seconds are usual; here two lines follow each other sooner."""

    def near():
        varied.client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 2})
        lines = [x for x in varied.text().splitlines() if "tokens/s, running" in x]
        times = [datetime.fromisoformat(x.partition("] ")[2].partition("Z")[0]) for x in lines]
        return any((b - a).total_seconds() < 8 for a, b in pairwise(times))

    until(near, 20, 0.3)


def test_numbers_that_are_none_are_counted(plain, varied):
    for server in (plain, varied):
        reply = server.client.post(COMPLETIONS, json={**body(prompt=[255]), "model": None})
        assert reply.status_code == 500
    assert varied.metric("vllm:corrupted_requests_total") == 1
    assert "corrupted" not in plain.client.get("/metrics").text


def test_errors_of_a_server_in_development_have_their_stack(plain, varied):
    for server in (plain, varied):
        assert server.client.get("/nowhere").status_code == 404
    until(lambda: "answer 404" in varied.text())
    assert "answer 404" not in plain.text()


def test_variables_that_do_nothing_are_told(varied):
    text = varied.text()
    assert "warning: VLLM_IMAGE_FETCH_TIMEOUT is set; it is known, but not honoured" in text
    assert "warning: unknown environment variable VLLM_NO_SUCH_NAME" in text
