"""The Messages API of a real server: recorded exchanges, and the anthropic client."""

import json
import sys

import anthropic
import pytest

served = sys.modules["ortloom_test_served"]

KEY = "sk-messages"
MODEL = "demo-model"
HELLO = [{"role": "user", "content": "Say hi."}]
TOOL = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
GREEDY = {"temperature": 0}


@pytest.fixture(scope="module")
def server(demo_bundle):
    flags = ["--served-model-name", MODEL, "--api-key", KEY, "--max-model-len", "2048"]
    with served.Served(demo_bundle, *flags, "--enable-prompt-tokens-details") as running:
        running.client.headers["authorization"] = f"Bearer {KEY}"
        yield running


@pytest.fixture(scope="module")
def client(server):
    with anthropic.Anthropic(base_url=server.url, auth_token=KEY, max_retries=0) as connected:
        yield connected


def recorded(usage, **members):
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hello there! I'm here"}],
        "model": MODEL,
        "stop_reason": "max_tokens",
        "usage": {"output_tokens": 6, "cache_creation_input_tokens": 0, **usage},
        **members,
    }


@pytest.mark.parametrize(("system", "size"), [(None, 33), ("Be brief.", 20)])
def test_recorded_replies(server, system, size):
    body = {"model": MODEL, "max_tokens": 6, "messages": HELLO, **GREEDY}
    if system is not None:
        body["system"] = system
    told = server.client.post("/v1/messages", json=body).json()
    assert told.pop("id").startswith("chatcmpl-")
    usage = told["usage"]
    cached = usage["cache_read_input_tokens"]
    assert usage["input_tokens"] + cached == size
    told["usage"] = {k: v for k, v in usage.items() if k not in ("input_tokens",)}
    assert told == recorded({"cache_read_input_tokens": cached})


def test_recorded_refusal(server):
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    response = server.client.post("/v1/messages", json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error.pop("message")
    assert error == {"type": "Bad Request", "param": "body.max_tokens", "code": 400}


def test_recorded_count(server, client):
    body = {"model": MODEL, "messages": HELLO}
    told = server.client.post("/v1/messages/count_tokens", json=body).json()
    assert told == {"input_tokens": 33, "context_management": {"original_input_tokens": 33}}
    assert client.messages.count_tokens(**body).input_tokens == 33


def test_key_of_the_client(server, client):
    with (
        anthropic.Anthropic(base_url=server.url, auth_token="other", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.count_tokens(model=MODEL, messages=HELLO)
    with pytest.raises(anthropic.NotFoundError) as caught:
        client.messages.create(model="nobody", max_tokens=1, messages=HELLO)
    assert caught.value.type == "not_found_error"


def test_a_conversation_is_streamed_as_it_is_told(client):
    asked = {
        "model": MODEL,
        "max_tokens": 12,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            *HELLO,
            {"role": "assistant", "content": [{"type": "text", "text": "Hi."}]},
            {"role": "user", "content": [{"type": "text", "text": "And again?"}]},
        ],
        "extra_body": GREEDY,
    }
    plain = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert text == plain.content[0].text
    assert streamed.stop_reason == plain.stop_reason
    sizes = [m.usage.input_tokens + m.usage.cache_read_input_tokens for m in (plain, streamed)]
    assert sizes[0] == sizes[1]
    assert streamed.usage.cache_read_input_tokens > 0  # the second finds the first one's prompt


def test_tool_use_and_format(client):
    asked = {
        "model": MODEL,
        "max_tokens": 64,
        "messages": [{"role": "user", "content": "How is the weather in Oslo?"}],
        "extra_body": GREEDY,
    }
    call = client.messages.create(**asked, tools=[TOOL], tool_choice={"type": "any"})
    assert call.stop_reason == "tool_use"
    block = call.content[-1]
    assert block.name == "get_weather"
    assert isinstance(block.input["city"], str)
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "Sunny."}
    messages = [*asked["messages"], call.to_param(), {"role": "user", "content": [result]}]
    none = {"type": "none"}
    after = client.messages.create(
        **{**asked, "messages": messages, "max_tokens": 8}, tools=[TOOL], tool_choice=none
    )
    assert after.content[0].type == "text"
    schema = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
    form = {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}
    answer = client.messages.create(**asked, output_config=form)
    assert json.loads(answer.content[0].text) == {"city": "Oslo"}
