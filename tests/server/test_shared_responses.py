"""Stored responses of a server with two front processes, over connections that either may take."""

import json
import os
import signal

import httpx
import pytest
from serving import Server, until

from ortloom.server.openai.responses.owners import Owners

PATH = "/v1/responses"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("t")


@pytest.fixture(scope="module")
def server(bundle, place):
    env = {"FAKE_STEP": "0.01", "TMPDIR": str(place)}
    with Server(bundle, num_fronts=2, enable_responses_store=True, env=env) as running:
        yield running
    assert not list(place.glob("ortloom-*"))  # nothing is left behind


def fresh(server, method, path, body=None):
    """A request over a connection of its own."""
    return httpx.request(method, server.url + path, json=body, timeout=60)


def make(server, **fields):
    body = {"input": "ab", "max_output_tokens": 3, "temperature": 0, **fields}
    reply = fresh(server, "POST", PATH, body)
    assert reply.status_code == 200, reply.text
    return reply


def fetched(server, response_id):
    """The response as every connection gives it."""
    replies = [fresh(server, "GET", f"{PATH}/{response_id}") for _ in range(6)]
    assert {reply.status_code for reply in replies} == {200}
    return replies[0].json()


def made_by_both(server, place):
    """Responses of which each front keeps some."""
    (folder,) = place.glob("ortloom-*/responses")
    owners = Owners(folder, 0)
    found = []

    def enough():
        found.append(make(server).json())
        return {owners.owner(response["id"]) for response in found} == {0, 1}

    until(enough, 60)
    return found


def test_every_connection_reaches_every_response(server, place):
    for response in made_by_both(server, place)[-8:]:
        assert fetched(server, response["id"]) == response
        item = {"type": "item_reference", "id": response["output"][0]["id"]}
        for _ in range(4):
            turn = make(server, previous_response_id=response["id"], input="c").json()
            assert turn["usage"]["input_tokens"] > response["usage"]["total_tokens"]
            make(server, input=[item, {"role": "user", "content": "c"}])


def test_background_work_is_seen_read_and_ended_by_every_connection(server):
    for number in range(4):
        with httpx.stream(
            "POST",
            server.url + PATH,
            json={
                **{"input": "ab", "ignore_eos": True, "background": True, "stream": True},
                **{"request_id": f"bg{number}", "max_output_tokens": 3000},
            },
            timeout=60,
        ) as stream:
            next(stream.iter_raw())
        path = f"{PATH}/resp_bg{number}"
        for _ in range(4):
            assert fresh(server, "GET", path).json()["status"] == "in_progress"
        ended = fresh(server, "POST", f"{path}/cancel").json()
        assert ended["status"] == "cancelled"
        assert fetched(server, f"resp_bg{number}") == ended
        for after in (0, 3):
            text = fresh(server, "GET", f"{path}?stream=true&starting_after={after}").text
            events = [json.loads(x[6:]) for x in text.splitlines() if x.startswith("data: ")]
            assert [e["sequence_number"] for e in events] == list(
                range(after + 1, after + 1 + len(events))
            )
            assert events[-1]["type"] == "response.incomplete"
    server.idle()


def test_a_front_that_is_killed_loses_only_its_own(server, place):
    found = made_by_both(server, place)
    before = server.front_pids
    os.kill(before[0], signal.SIGKILL)
    until(lambda: len(set(server.front_pids) - set(before)) == 1, 20)
    kept = []

    def settled():
        replies = [[fresh(server, "GET", f"{PATH}/{r['id']}") for _ in range(4)] for r in found]
        codes = [{reply.status_code for reply in each} for each in replies]
        kept[:] = [each[0].json() for each in replies if each[0].status_code == 200]
        return all(code in ({200}, {404}) for code in codes)

    until(settled, 20)
    assert 0 < len(kept) < len(found)
    assert all(response in found for response in kept)
    for response in made_by_both(server, place)[-4:]:
        assert fetched(server, response["id"]) == response
