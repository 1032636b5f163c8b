"""Constraints are tried out in a process that may hang or die without harm to the engine."""

import json
import os
import signal
import time

import pytest

from ortloom.errors import InvalidRequest
from ortloom.runtime import grammar_trial
from ortloom.runtime.grammar_trial import GrammarTrial
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler

VOCAB, EOS = 264, 0
GOOD = StructuredOutput("regex", "[ab]+")
ENDLESS = StructuredOutput("json", json.dumps({"type": "integer", "multipleOf": 99_999_989}))


@pytest.fixture(scope="module")
def path(tokenizer, tmp_path_factory):
    file = tmp_path_factory.mktemp("tok") / "tokenizer.json"
    tokenizer.save(str(file))
    return file


@pytest.fixture
def trial(path):
    made = GrammarTrial(path, VOCAB, [EOS])
    yield made
    made.close()


def worker_pid(trial):
    return trial._worker.pid


def test_good_and_bad_ones_use_one_process(trial):
    trial.check(GOOD)
    first = worker_pid(trial)
    with pytest.raises(InvalidRequest, match="regex") as raised:
        trial.check(StructuredOutput("regex", "("))
    assert raised.value.param == "structured_outputs"
    trial.check(GOOD)
    assert worker_pid(trial) == first


def test_one_that_never_ends_is_refused_and_the_next_is_taken(trial, path):
    compiler = GrammarCompiler(path, VOCAB, [EOS], trial)
    began = time.monotonic()
    with pytest.raises(InvalidRequest, match="too much time") as raised:
        compiler.validate(ENDLESS)
    assert raised.value.param == "structured_outputs"
    assert time.monotonic() - began < grammar_trial.WALL_SECONDS
    compiler.validate(GOOD)


def test_a_worker_that_does_not_answer_is_given_up(trial, monkeypatch):
    trial.check(GOOD)
    first = worker_pid(trial)
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(grammar_trial, "WALL_SECONDS", 0.3)
    with pytest.raises(InvalidRequest, match="too much time"):
        trial.check(GOOD)
    monkeypatch.undo()
    trial.check(GOOD)
    assert worker_pid(trial) != first


def test_a_worker_that_ended_is_replaced(trial):
    trial.check(GOOD)
    os.kill(worker_pid(trial), signal.SIGKILL)
    trial._worker.wait()
    trial.check(GOOD)


def test_a_worker_that_ends_while_it_is_asked_is_asked_again(trial):
    """As if its idle time was over at that very moment: its input is closed, so it exits 0."""
    trial.check(GOOD)
    real = trial._running

    def closing():
        worker = real()
        worker.stdin.close()
        worker.wait()
        trial._running = real
        worker.stdin = open(os.devnull, "wb")  # noqa: SIM115
        return worker

    trial._running = closing
    trial.check(GOOD)


def test_it_ends_with_the_trial(trial):
    trial.check(GOOD)
    worker = trial._worker
    trial.close()
    assert worker.returncode == -signal.SIGKILL


def test_one_constraint_may_not_take_long_and_costs_the_worker_nothing(trial):
    """The limit is of processor time, and of one child; the worker keeps what it has loaded."""
    trial.check(GOOD)
    first = worker_pid(trial)
    used = os.times().children_user + os.times().children_system
    with pytest.raises(InvalidRequest, match="too much time"):
        trial.check(ENDLESS)
    trial.check(GOOD)
    assert worker_pid(trial) == first
    trial.close()  # its time counts once it has ended
    spent = os.times().children_user + os.times().children_system - used
    assert spent < 6.0  # its own start, and a second and a half


def test_the_worker_starts_while_the_engine_loads(trial, path):
    compiler = GrammarCompiler(path, VOCAB, [EOS], trial)
    compiler.load()
    first = worker_pid(trial)
    compiler.validate(GOOD)
    assert worker_pid(trial) == first
