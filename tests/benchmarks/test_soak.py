"""The soak: what it sees as wrong, and twenty seconds of it (`python -m benchmarks.soak` is ten
minutes)."""

import asyncio
import json
import sys

import pytest
from benchmarks.soak.__main__ import FLAGS, GROWTH
from benchmarks.soak.answers import WrongOrder, of_events, of_reply
from benchmarks.soak.asked import Asked, draw_requests
from benchmarks.soak.run import Report, Soak, gauges

served = sys.modules["ortloom_test_served"]


def chunk(index=0, **choice):
    fields = {"text": "a", "finish_reason": None, "token_ids": [1], **choice}
    head = {"id": "cmpl-1", "created": 1, "model": "m"}
    return "data: " + json.dumps({**head, "choices": [{"index": index, **fields}]})


END = chunk(text="b", token_ids=[2], finish_reason="stop", stop_reason=None)
DONE = "data: [DONE]"


def test_a_stream_is_the_reply():
    reply = {"index": 0, "text": "ab", "token_ids": [1, 2], "finish_reason": "stop"}
    answer, usage = of_events([chunk(), "", END, DONE], False, False)
    assert answer == of_reply({"choices": [reply]}, False)
    assert usage is None


@pytest.mark.parametrize(
    "lines",
    [
        [chunk(), END],
        [END, chunk(), DONE],
        [chunk(), DONE],
        [END, DONE, DONE],
        [chunk(), END.replace("cmpl-1", "cmpl-2"), DONE],
        [END.replace("}]", ', "logprobs": {"text_offset": [3]}}]'), DONE],
    ],
)
def test_wrong_orders_are_seen(lines):
    with pytest.raises(WrongOrder):
        of_events(lines, False, False)


def test_requests_are_the_same_for_the_same_seed():
    some = draw_requests(3, 30)
    assert some == draw_requests(3, 30)
    assert some != draw_requests(4, 30)
    fields = {name for asked in some for name in asked.body}
    assert {"logprobs", "n", "stop", "seed", "structured_outputs"} <= fields


def test_what_is_wrong_is_noted():
    soak = Soak("http://127.0.0.1:1", {})
    asked = Asked("/v1/completions", {"structured_outputs": {"choice": ["yes"]}})
    wanted = [{"text": "yes", "token_ids": [1], "finish_reason": "stop", "stop_reason": None}]
    soak._compare(asked, wanted, wanted, "whole")
    assert not soak.report.wrong
    soak._compare(asked, [{**wanted[0], "token_ids": [2]}], wanted, "whole")
    other = [{**wanted[0], "text": "no"}]
    soak._compare(asked, other, other, "whole")
    assert ["token_ids" in soak.report.wrong[0], "not allowed" in soak.report.wrong[1]] == [
        True
    ] * 2


def test_gauges_and_growth():
    text = 'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:num_requests_running{engine="0"} 0.0\n'
    assert gauges(text)["kv_cache_usage_perc"] == 0.25
    assert Report(memory={"engine": [5, 9, 8, 12]}).growth() == {"engine": 3}


@pytest.mark.full
def test_twenty_seconds_of_everything(demo_bundle_int8):
    with served.Served(demo_bundle_int8, *FLAGS) as server:
        pids = {
            "engine": server.pid_of("ortloom.runtime.engine_process"),
            "front": server.pid_of("ortloom.server.front"),
        }
        soak = Soak(server.url, pids, seconds=20, round_seconds=10)
        report = asyncio.run(soak.run())
    assert report.wrong == []
    assert report.counts["rounds"] == 2
    assert report.counts["streamed"] > 10
    assert report.counts["whole"] > 10
    assert all(value < GROWTH for value in report.growth().values())
