"""Outputs reach the log only with the flag: whole, or as pieces of a stream, and cut."""

import logging
import time

import msgspec
import pytest

from ortloom.config import LogConfig
from ortloom.runtime.messages import EngineOutput
from ortloom.server.openai.output_log import output_log
from ortloom.server.openai.sample import Piece


def piece(text, ids, finish=None, index=0):
    return Piece(index, text, ids, [], EngineOutput("r"), finish)


PIECES = [
    piece("ab", [1, 2]),
    piece("xy", [8, 9], index=1),
    piece("cd", [3], "stop"),
    piece("", [4], "length", 1),
]


def lines(caplog, stream, **settings):
    log = output_log("cmpl-x", stream, LogConfig(log_outputs=True, **settings))
    caplog.clear()
    with caplog.at_level(logging.INFO):
        for item in PIECES:
            log.note(item)
    return caplog.messages


def test_nothing_without_the_flag():
    assert output_log("cmpl-x", True, LogConfig()) is None


def test_whole_replies(caplog):
    first, second = lines(caplog, False)
    assert "'cmpl-x'[0]: output: 'abcd', output_token_ids: [1, 2, 3], finish_reason: stop" in first
    assert "'cmpl-x'[1]: output: 'xy', output_token_ids: [8, 9, 4], finish_reason: length" in second


@pytest.mark.parametrize("deltas", [True, False])
def test_streams(caplog, deltas):
    found = lines(caplog, True, log_deltas=deltas)
    assert sum("(streaming delta)" in line for line in found) == 4 * deltas
    whole = [line for line in found if "(streaming complete)" in line]
    assert ["'abcd'" in line for line in whole] == [True, False]


def test_outputs_are_cut(caplog):
    first, second = lines(caplog, False, max_log_len=1)
    assert "output: 'a', output_token_ids: [1]," in first
    assert "output: 'x', output_token_ids: [8]," in second


BODIES = {
    "/v1/completions": {"prompt": "boats"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "boats"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "boats"}], "max_tokens": 30},
    "/v1/responses": {"input": "boats"},
}


@pytest.fixture
def logging_app(app):
    before = app.context.config
    log = LogConfig(log_outputs=True, log_requests=True)
    app.context.config = msgspec.structs.replace(before, log=log)
    yield app
    app.context.config = before


@pytest.mark.parametrize("path", list(BODIES))
def test_the_flag_works_on_the_routes(logging_app, say, caplog, path):
    say("The sea")
    body = {"model": "tiny", "temperature": 0, **BODIES[path]}
    with caplog.at_level(logging.INFO, "ortloom.requests"):
        assert logging_app.post(path, body).status_code == 200
        assert logging_app.post(path, {**body, "stream": True}).status_code == 200
    found = [m for m in caplog.messages if "output: 'The sea'" in m]
    assert [" (streaming complete)" in m for m in found] == [False, True]
    asked = [m for m in caplog.messages if m.startswith("request ")]
    assert len(asked) == 2
    for told, output in zip(asked, found, strict=True):
        assert told.split("'")[1] == output.split("'")[1]  # the id the client sees


def test_what_is_generated_in_the_background_is_logged(start, say, caplog):
    log = LogConfig(log_outputs=True)
    with start(front={"enable_responses_store": True}) as app:
        app.context.config = msgspec.structs.replace(app.context.config, log=log)
        say("The sea")
        body = {"model": "tiny", "input": "boats", "temperature": 0, "background": True}
        with caplog.at_level(logging.INFO, "ortloom.requests"):
            made = app.post("/v1/responses", body).json()["id"]
            end = time.monotonic() + 20
            while "output: 'The sea'" not in caplog.text:
                assert time.monotonic() < end
                time.sleep(0.01)
    assert made in caplog.text


def test_beams_are_logged(logging_app, say, caplog):
    say("The sea")
    body = {"model": "tiny", "prompt": "boats", "use_beam_search": True, "n": 2, "max_tokens": 2}
    with caplog.at_level(logging.INFO, "ortloom.requests"):
        choices = logging_app.post("/v1/completions", body).json()["choices"]
    found = [m for m in caplog.messages if m.startswith("generated response")]
    assert len(found) == len(choices) == 2
    for choice, line in zip(choices, found, strict=True):
        assert f"output: {choice['text']!r}" in line
