"""The Messages API over a scripted engine: with the anthropic client, and byte for byte."""

import asyncio
import json
import socket
import threading

import anthropic
import pytest

from ortloom.errors import EngineDead, QueueFull
from ortloom.models.generation_config import GenerationDefaults

PATH = "/v1/messages"
COUNT = "/v1/messages/count_tokens"
HELLO = [{"role": "user", "content": "Say hi"}]
TOOL = {"name": "get_w", "input_schema": {"properties": {"city": {"type": "string"}}}}


def body(**fields):
    return {"model": "tiny", "max_tokens": 40, "messages": HELLO, "temperature": 0, **fields}


def asked(**fields):
    """The same for the client, whose newest versions have no temperature of their own."""
    fields = body(**fields)
    return {"extra_body": {"temperature": fields.pop("temperature")}, **fields}


def client_of(app):
    return anthropic.Anthropic(base_url=app.url, api_key="none", max_retries=0)


@pytest.fixture
def client(app):
    with client_of(app) as connected:
        yield connected


def named_events(response):
    """(name, data) of each event of a stream."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for text in response.text.split("\n\n"):
        if text and not text.startswith(":"):
            name, data = text.split("\n")
            assert name.startswith("event: ")
            assert data.startswith("data: ")
            found.append((name[7:], json.loads(data[6:])))
            assert found[-1][1]["type"] == found[-1][0]
    return found


def error_of(response, status, kind):
    assert response.status_code == status, response.text
    told = response.json()
    assert told["type"] == "error"
    assert told["error"]["type"] == kind
    assert told["error"]["message"]
    return told["error"]


class TestReply:
    def test_members_are_those_recorded(self, app, say, engine):
        ids = say("The sea")
        told = app.post(PATH, body()).json()
        assert told.pop("id").startswith("chatcmpl-")
        assert told == {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": "The sea"}],
            "model": "tiny",
            "stop_reason": "end_turn",
            "usage": {
                "input_tokens": len(engine.requests[0].prompt_token_ids),
                "output_tokens": len(ids),
            },
        }

    def test_length_ends_with_max_tokens(self, client, say):
        say("The sea is a place", end=False)
        message = client.messages.create(**asked(max_tokens=3))
        assert message.stop_reason == "max_tokens"
        assert message.usage.output_tokens == 3

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_stop_sequence_is_named(self, client, say, streamed):
        say("Count: 1, 2, 3")
        fields = asked(stop_sequences=["2", "never"])
        if streamed:
            with client.messages.stream(**fields) as stream:
                message = stream.get_final_message()
        else:
            message = client.messages.create(**fields)
        assert message.stop_reason == "stop_sequence"
        assert message.stop_sequence == "2"
        assert message.content[0].text == "Count: 1, "

    def test_a_stop_token_is_no_stop_sequence(self, serve, engine, tokenizer):
        (token,) = tokenizer.encode("a")
        engine.reply = lambda request: [token]
        defaults = GenerationDefaults(secondary_eos_token_ids=(token,))
        with serve(defaults=defaults) as app, client_of(app) as client:
            message = client.messages.create(**asked())
        assert message.usage.output_tokens == 1
        assert message.stop_reason == "end_turn"
        assert message.stop_sequence is None

    def test_an_empty_reply_still_has_a_block(self, client, say):
        say("")
        message = client.messages.create(**asked())
        assert [block.text for block in message.content] == [""]

    def test_the_beta_route_is_the_same(self, client, say):
        say("The sea")
        message = client.beta.messages.create(**asked(), betas=["context-1m-2025-08-07"])
        assert message.content[0].text == "The sea"
        counted = client.beta.messages.count_tokens(model="tiny", messages=HELLO)
        assert counted.input_tokens == message.usage.input_tokens

    def test_the_detail_of_each_token(self, app, say):
        ids = say("The sea")
        plain = app.post(PATH, body()).json()
        assert not {"logprobs", "sampling_mask"} & set(plain)
        told = app.post(PATH, body(logprobs_detail=True)).json()
        assert told["sampling_mask"] == [[1, 2]] * len(ids)
        entries = told["logprobs"]["content"]
        assert [entry["token"] for entry in entries] == ["The", " sea", "<|im_end|>"]
        detail = {"raw_logprob": -1.5, "processed_logprob": -0.25, "rank": 7}
        assert all(detail.items() <= entry.items() for entry in entries)
        events = named_events(app.post(PATH, body(logprobs_detail=True, stream=True)))
        (last,) = [data for name, data in events if name == "message_delta"]
        assert last["logprobs"] == told["logprobs"]
        assert last["sampling_mask"] == told["sampling_mask"]
        events = named_events(app.post(PATH, body(stream=True)))
        assert not any("logprobs" in data for _, data in events)

    def test_request_id_of_the_header(self, app, say):
        say("a")
        told = app.post(PATH, body(), headers={"x-request-id": "mine"}).json()
        assert told["id"] == "chatcmpl-mine"

    def test_headers_of_the_client_are_no_matter(self, app, say):
        say("a")
        headers = {"anthropic-version": "1999-01-01", "anthropic-beta": "x", "x-api-key": "k"}
        assert app.post(PATH, body(), headers=headers).status_code == 200


class TestUsage:
    def test_cached_tokens_are_told_apart_when_asked_for(self, serve, engine, say):
        ids = say("The sea")
        engine.cached = 16
        with serve(front={"enable_prompt_tokens_details": True}) as app, client_of(app) as client:
            plain = client.messages.create(**asked()).usage
            with client.messages.stream(**asked()) as stream:
                streamed = stream.get_final_message().usage
        size = len(engine.requests[0].prompt_token_ids)
        for usage in (plain, streamed):
            assert usage.input_tokens == size - 16
            assert usage.cache_read_input_tokens == 16
            assert usage.cache_creation_input_tokens == 0
            assert usage.output_tokens == len(ids)

    def test_without_the_flag_the_members_are_absent(self, app, say, engine):
        say("The sea")
        engine.cached = 16
        for usage in (
            app.post(PATH, body()).json()["usage"],
            named_events(app.post(PATH, body(stream=True)))[-2][1]["usage"],
        ):
            assert set(usage) == {"input_tokens", "output_tokens"}
            assert usage["input_tokens"] == len(engine.requests[0].prompt_token_ids)


class TestStream:
    def test_events_and_their_members(self, app, say, engine):
        ids = say("The sea is")
        events = named_events(app.post(PATH, body(stream=True)))
        names = [name for name, _ in events]
        assert names[:2] == ["message_start", "content_block_start"]
        assert set(names[2:-3]) == {"content_block_delta"}
        assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        start = events[0][1]["message"]
        assert start.pop("id").startswith("chatcmpl-")
        size = len(engine.requests[0].prompt_token_ids)
        assert start == {
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "tiny",
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": size, "output_tokens": 0},
        }
        assert events[1][1] == {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "text", "text": ""},
        }
        deltas = [data for _, data in events[2:-3]]
        assert all(data["index"] == 0 for data in deltas)
        assert all(data["delta"]["type"] == "text_delta" for data in deltas)
        assert "".join(data["delta"]["text"] for data in deltas) == "The sea is"
        assert events[-3][1] == {"type": "content_block_stop", "index": 0}
        assert events[-2][1] == {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn", "stop_sequence": None},
            "usage": {"input_tokens": size, "output_tokens": len(ids)},
        }
        assert events[-1][1] == {"type": "message_stop"}

    def test_the_client_reads_the_same_as_from_a_reply(self, client, say):
        say("Small boats drift home")
        plain = client.messages.create(**asked())
        with client.messages.stream(**asked()) as stream:
            assert "".join(stream.text_stream) == plain.content[0].text
            streamed = stream.get_final_message()
        assert streamed.stop_reason == plain.stop_reason
        assert streamed.usage.output_tokens == plain.usage.output_tokens

    def test_an_error_before_the_first_output_has_its_status(self, app, engine):
        engine.refusal = QueueFull("full")
        response = app.post(PATH, body(stream=True))
        error_of(response, 503, "overloaded_error")
        assert response.headers["retry-after"] == "1"

    def test_an_error_after_that_is_an_event_and_the_last(self, app, say, engine):
        say("The sea is a place")
        engine.failure = (2, EngineDead("The engine is not running."))
        events = named_events(app.post(PATH, body(stream=True)))
        assert [name for name, _ in events[:2]] == ["message_start", "content_block_start"]
        name, data = events[-1]
        assert name == "error"
        assert data["error"] == {
            "type": "overloaded_error",
            "message": "The engine is not running.",
        }
        assert "message_stop" not in [name for name, _ in events]

    def test_the_client_raises_that_error(self, client, say, engine):
        say("The sea is a place")
        engine.failure = (2, EngineDead("The engine is not running."))
        with (
            pytest.raises(anthropic.APIStatusError, match="not running"),
            client.messages.stream(**asked()) as stream,
        ):
            stream.get_final_message()

    @pytest.mark.parametrize("streamed", [False, True])
    def test_a_client_that_leaves_ends_the_request(self, app, engine, streamed):
        held = engine.hold = Held()
        data = json.dumps(body(stream=streamed)).encode()
        head = (
            f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"content-length: {len(data)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", app.port)) as connection:
            connection.sendall(head.encode() + data)
            assert held.reached.wait(20)
            assert engine.open
        assert engine.all_closed.wait(20)
        assert not engine.open


class Held:
    """Holds the engine's outputs until its request is cancelled."""

    def __init__(self):
        self.reached = threading.Event()

    async def wait(self):
        self.reached.set()
        await asyncio.sleep(3600)
