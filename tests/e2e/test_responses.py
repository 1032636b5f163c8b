"""The Responses API as openai's client uses it, against the real server and the demo model."""

import json
import sys
import threading
import time

import openai
import pytest

served = sys.modules["ortloom_test_served"]

MODEL = "demo"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
        "required": ["city"],
    },
}
STORY = {"model": MODEL, "input": "Tell me a long story.", "temperature": 0}


@pytest.fixture(scope="module")
def server(demo_bundle):
    flags = ["--max-model-len", "512", "--served-model-name", MODEL]
    env = {"VLLM_ENABLE_RESPONSES_API_STORE": "1"}
    with served.Served(demo_bundle, *flags, env=env) as running:
        yield running


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="x", max_retries=0) as made:
        yield made


def idle(server):
    metrics = server.metrics()
    return not metrics["vllm:num_requests_running"] and not metrics["vllm:num_requests_waiting"]


def until(what, seconds=60):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({"input": "Say hi."}, 33),
        ({"input": [{"role": "user", "content": "Say hi."}], "instructions": "Be brief."}, 20),
    ],
)
def test_the_reference_servers_answers(client, fields, tokens):
    """Text and counts as vLLM gave them for the same weights."""
    reply = client.responses.create(model=MODEL, temperature=0, max_output_tokens=6, **fields)
    assert reply.output_text == "Hello there! I'm here"
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.usage.input_tokens, reply.usage.output_tokens) == (tokens, 6)


def test_a_stream_gives_the_reply_and_a_conversation_goes_on(client):
    fields = {"model": MODEL, "input": "Say hi.", "temperature": 0}
    fields["extra_body"] = {"stop": "with"}  # ends by itself, and soon
    reply = client.responses.create(**fields)
    with client.responses.stream(**fields) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == reply.output_text
    assert final.usage == reply.usage
    second = client.responses.create(
        model=MODEL, input="Again.", previous_response_id=reply.id, max_output_tokens=5
    )
    assert second.usage.input_tokens > reply.usage.total_tokens


def test_a_schema_binds_the_text(client):
    schema = {
        "type": "object",
        "properties": {"big": {"type": "boolean"}},
        "required": ["big"],
        "additionalProperties": False,
    }
    form = {"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}}
    reply = client.responses.create(model=MODEL, input="A city?", text=form, temperature=0)
    assert set(json.loads(reply.output_text)) == {"big"}
    bad = {"format": {"type": "json_schema", "name": "n", "schema": {"type": "nonsense"}}}
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=MODEL, input="x", text=bad, stream=True)


def test_a_forced_call_and_its_output(client):
    fields = {"model": MODEL, "input": "Weather in Rome?", "temperature": 0}
    fields |= {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}}
    (call,) = client.responses.create(**fields).output
    assert (call.type, call.name) == ("function_call", "get_weather")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    events = list(client.responses.create(stream=True, **fields))
    deltas = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
    last = events[-1].response
    assert "".join(deltas) == last.output[0].arguments == call.arguments
    result = {"call_id": last.output[0].call_id, "output": "sunny"}
    after = client.responses.create(
        model=MODEL,
        previous_response_id=last.id,
        input=[{"type": "function_call_output", **result}],
        max_output_tokens=5,
    )
    assert after.output_text


def test_the_background_finishes_or_is_cancelled(client, server):
    done = client.responses.create(background=True, max_output_tokens=5, **STORY)
    assert done.status == "queued"
    until(lambda: client.responses.retrieve(done.id).status not in ("queued", "in_progress"))
    assert client.responses.retrieve(done.id).usage.output_tokens == 5
    endless = {"extra_body": {"ignore_eos": True}, **STORY}
    other = client.responses.create(background=True, **endless)
    until(lambda: client.responses.retrieve(other.id).status == "in_progress")
    assert client.responses.cancel(other.id).status == "cancelled"
    until(lambda: idle(server))
    stream = client.responses.create(background=True, stream=True, **endless)
    first = next(stream)
    stream.close()  # the response goes on
    canceller = threading.Timer(1, lambda: client.responses.cancel(first.response.id))
    canceller.start()
    again = list(client.responses.retrieve(first.response.id, stream=True, starting_after=0))
    assert [e.sequence_number for e in again] == list(range(1, len(again) + 1))
    assert again[-1].response.status == "cancelled"
    assert again[-1].response.output_text
    until(lambda: idle(server))


def test_a_client_that_leaves_ends_its_response(client, server):
    stream = client.responses.create(stream=True, extra_body={"ignore_eos": True}, **STORY)
    next(stream)
    assert not idle(server)
    stream.close()
    until(lambda: idle(server))
