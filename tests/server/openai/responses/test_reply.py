"""Replies and streams of POST /v1/responses: members, order, statuses."""

import asyncio
import contextlib
import json
import threading

import httpx
import pytest

from ortloom.errors import EngineDead, QueueFull, RequestFailed

PATH = "/v1/responses"
HI = "<|im_start|>user\nSay hi<|im_end|>\n<|im_start|>assistant\n"


def body(**fields):
    return {"model": "tiny", "input": "Say hi", "temperature": 0, **fields}


def text_of(response):
    return response["output"][0]["content"][0]["text"]


def test_a_reply_has_every_member(app, say, engine, tokenizer):
    ids = say("The sea is", end=False)
    response = app.post(PATH, body(max_output_tokens=len(ids)))
    assert response.status_code == 200, response.text
    reply = response.json()
    created = reply.pop("created_at")
    assert isinstance(created, int)
    assert reply.pop("id").startswith("resp_")
    assert reply["output"][0].pop("id").startswith("msg_")
    prompt = tokenizer.encode(HI)
    assert engine.requests[0].prompt_token_ids == prompt
    assert reply == {
        "incomplete_details": {"reason": "max_output_tokens"},
        "instructions": None,
        "metadata": None,
        "model": "tiny",
        "object": "response",
        "output": [
            {
                "content": [
                    {
                        "annotations": [],
                        "text": "The sea is",
                        "type": "output_text",
                        "logprobs": None,
                    }
                ],
                "role": "assistant",
                "status": "completed",
                "type": "message",
                "phase": None,
            }
        ],
        "parallel_tool_calls": True,
        "temperature": 0.0,
        "tool_choice": "none",
        "tools": [],
        "top_p": 1.0,
        "background": False,
        "max_output_tokens": len(ids),
        "max_tool_calls": None,
        "previous_response_id": None,
        "prompt": None,
        "reasoning": None,
        "service_tier": "auto",
        "status": "incomplete",
        "text": None,
        "top_logprobs": None,
        "truncation": "disabled",
        "usage": {
            "input_tokens": len(prompt),
            "input_tokens_details": {
                "cached_tokens": 0,
                "cache_write_tokens": 0,
                "input_tokens_per_turn": [],
                "cached_tokens_per_turn": [],
            },
            "output_tokens": len(ids),
            "output_tokens_details": {
                "reasoning_tokens": 0,
                "tool_output_tokens": 0,
                "output_tokens_per_turn": [],
                "tool_output_tokens_per_turn": [],
            },
            "total_tokens": len(prompt) + len(ids),
        },
        "user": None,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "input_messages": None,
        "output_messages": None,
    }


def test_a_response_that_ends_by_itself_is_completed(app, say, engine):
    say("The sea")
    engine.cached = 16
    reply = app.post(PATH, body()).json()
    assert (reply["status"], reply["incomplete_details"]) == ("completed", None)
    assert reply["usage"]["input_tokens_details"]["cached_tokens"] == 16


def test_a_model_that_says_nothing_gives_an_empty_message(app, say, events_of):
    say("")
    reply = app.post(PATH, body()).json()
    assert (reply["status"], reply["output"][0]["content"]) == ("completed", [])
    events = events_of(app.post(PATH, body(stream=True)))
    assert [e["type"] for e in events] == [
        "response.created",
        "response.in_progress",
        "response.completed",
    ]


def test_the_events_of_a_stream(app, say, events_of):
    ids = say("The sea is")
    events = events_of(app.post(PATH, body(stream=True)))
    assert [e["type"] for e in events] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * (len(ids) - 1),
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert events[1]["response"] == first
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert last["usage"]["output_tokens"] == len(ids)
    item = last["output"][0]
    added, part, *deltas, done, part_done, item_done, _ = events[2:]
    assert added["item"] == {**item, "content": [], "status": "in_progress"}
    assert part["part"] == {"annotations": [], "text": "", "type": "output_text", "logprobs": []}
    assert "".join(e["delta"] for e in deltas) == done["text"] == text_of(last) == "The sea is"
    assert part_done["part"] == item["content"][0]
    assert item_done["item"] == item
    for event in (part, *deltas, done, part_done):
        assert (event["item_id"], event["output_index"], event["content_index"]) == (
            item["id"],
            0,
            0,
        )
    assert all(e["logprobs"] == [] for e in (*deltas, done))


def test_a_stream_ends_as_the_reply_says(app, say, events_of):
    ids = say("The sea is a place", end=False)
    fields = {"max_output_tokens": len(ids), "enable_response_messages": True, "user": "u"}
    plain = app.post(PATH, body(**fields)).json()
    last = events_of(app.post(PATH, body(stream=True, **fields)))[-1]
    assert last["type"] == "response.incomplete"
    for reply in (plain, last["response"]):
        for volatile in ("id", "created_at"):
            del reply[volatile]
        del reply["output"][0]["id"]
    assert last["response"] == plain


def test_a_whole_character_is_waited_for(app, say, events_of):
    say("👍🏽 ok")
    events = events_of(app.post(PATH, body(stream=True)))
    deltas = [e["delta"] for e in events if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "👍🏽 ok"
    assert all(deltas)


def test_logprobs_need_include(app, say, events_of):
    ids = say("The sea")
    reply = app.post(PATH, body(top_logprobs=2)).json()
    assert reply["output"][0]["content"][0]["logprobs"] is None
    assert reply["top_logprobs"] is None
    include = ["message.output_text.logprobs"]
    for top, listed in ((None, 0), (0, 0), (2, 2)):
        reply = app.post(PATH, body(top_logprobs=top, include=include)).json()
        logprobs = reply["output"][0]["content"][0]["logprobs"]
        assert reply["top_logprobs"] == listed
        assert [len(e["top_logprobs"]) for e in logprobs] == [listed] * len(ids)
        assert (logprobs[0]["token"], logprobs[0]["bytes"]) == ("The", list(b"The"))
        assert set(logprobs[0]) == {"token", "logprob", "bytes", "top_logprobs"}
    events = events_of(app.post(PATH, body(top_logprobs=2, include=include, stream=True)))
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    streamed = [entry for e in deltas for entry in e["logprobs"]]
    assert set(streamed[0]) == {"token", "logprob", "top_logprobs"}
    assert set(streamed[0]["top_logprobs"][0]) == {"token", "logprob"}
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["logprobs"][: len(streamed)] == streamed
    assert len(done["logprobs"]) == len(ids)  # the end token too
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == logprobs


DETAIL = {"raw_logprob": -1.5, "processed_logprob": -0.25, "rank": 7}


def test_the_detail_of_each_token(app, say, events_of):
    ids = say("The sea")
    reply = app.post(PATH, body(logprobs_detail=True)).json()
    (part,) = reply["output"][0]["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["The", " sea", "<|im_end|>"]
    assert all(DETAIL.items() <= entry.items() for entry in part["logprobs"])
    assert part["sampling_mask"] == [[1, 2]] * len(ids)
    events = events_of(app.post(PATH, body(logprobs_detail=True, stream=True)))
    assert events[-1]["response"]["output"][0]["content"] == [part]
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    for event in deltas:
        assert DETAIL.items() <= event["logprobs"][0].items()
        assert event["sampling_mask"] == [[1, 2]]
    (done,) = [e for e in events if e["type"] == "response.output_text.done"]
    assert done["sampling_mask"] == part["sampling_mask"]
    # the reply can be input again
    again = app.post(PATH, body(input=[*reply["output"], {"role": "user", "content": "x"}]))
    assert again.status_code == 200, again.text
    assert "sampling_mask" not in again.text


def test_the_raw_messages_on_demand(app, say, tokenizer):
    ids = say("The sea")
    reply = app.post(PATH, body(enable_response_messages=True)).json()
    assert reply["input_messages"] == [
        {"message": HI, "tokens": tokenizer.encode(HI), "type": "raw_message_tokens"}
    ]
    assert reply["output_messages"] == [
        {"message": "The sea", "tokens": ids, "type": "raw_message_tokens"}
    ]


def test_ids_keep_their_prefix_once(app, say):
    say("sea")
    assert app.post(PATH, body(request_id="resp_mine")).json()["id"] == "resp_mine"
    assert app.post(PATH, body(request_id="mine")).json()["id"] == "resp_mine"
    headers = {"X-Request-Id": "head"}
    assert app.post(PATH, body(request_id="x"), headers=headers).json()["id"] == "resp_head"


def test_the_first_served_name_is_echoed(app, say):
    say("sea")
    assert app.post(PATH, body(model="other")).json()["model"] == "tiny"


@pytest.mark.parametrize("stream", [False, True])
def test_a_refusal_of_the_engine_has_its_own_status(app, engine, stream):
    engine.refusal = QueueFull("full")
    response = app.post(PATH, body(stream=stream))
    assert response.status_code == 503
    assert response.json()["error"]["type"] == "ServiceUnavailableError"
    assert response.headers["retry-after"]


def test_a_failure_in_a_stream_is_its_last_event(app, say, engine, events_of):
    say("The sea is a place")
    for error, code in ((RequestFailed("the step failed"), 500), (EngineDead("gone"), 503)):
        engine.failure = (2, error)
        assert app.post(PATH, body()).status_code == code
        events = events_of(app.post(PATH, body(stream=True)))
        last = events[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "server_error", "message": str(error)}
        assert last["response"]["output"][0]["status"] == "incomplete"
        assert "error" not in events[0]["response"]


def test_a_client_that_leaves_ends_its_request(app, say, engine):
    say("sea ")
    with httpx.Client(base_url=app.url) as client:
        fields = body(stream=True, ignore_eos=True)
        engine.hold = asyncio.Event()
        with client.stream("POST", PATH, json=fields) as response:
            lines = response.iter_lines()  # to drop it would close the connection
            assert next(lines) == "event: response.created"
            assert engine.open
    assert engine.all_closed.wait(10)
    assert not engine.open


@pytest.mark.parametrize(
    ("front", "text"),
    [({"shutdown_timeout": 0.0}, "shutting down"), ({"request_deadline": 0.3}, "deadline")],
)
def test_a_stream_that_is_ended_here_says_so(serve, say, engine, front, text):
    say("The sea is")
    engine.hold = asyncio.Event()
    with httpx.Client() as client, contextlib.ExitStack() as stack:
        app = stack.enter_context(serve(front=front))
        fields = body(stream=True)
        reply = stack.enter_context(client.stream("POST", app.url + PATH, json=fields))
        received = reply.iter_lines()
        assert next(received) == "event: response.created"
        if "request_deadline" not in front:
            ender = threading.Timer(0.1, app.stop)
            ender.start()
        events = [json.loads(line[6:]) for line in received if line.startswith("data: ")]
    assert events[-1]["type"] == "response.failed"
    assert text in events[-1]["response"]["error"]["message"]
    assert engine.all_closed.wait(10)
