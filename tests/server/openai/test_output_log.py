"""Outputs reach the log only with the flag: whole, or as pieces of a stream, and cut."""

import logging

import pytest

from ortloom.config import Config, LogConfig
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


def test_the_flag_works_on_the_routes(serve, say, caplog):
    say("The sea")
    with serve() as app:
        log = LogConfig(log_outputs=True, log_requests=True)
        made = app.context.config
        app.context.config = Config(model=made.model, front=made.front, log=log)
        with caplog.at_level(logging.INFO, "ortloom.requests"):
            body = {"model": "tiny", "prompt": "boats", "temperature": 0}
            assert app.post("/v1/completions", body).status_code == 200
            app.events("/v1/completions", body)
    kinds = [" (streaming complete)" in m for m in caplog.messages if "output: 'The sea'" in m]
    assert kinds == [False, True]
