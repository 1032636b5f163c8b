"""Constraints are tried out in a process that may hang or die without harm to the engine."""

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ortloom.errors import InvalidRequest
from ortloom.runtime import grammar_trial
from ortloom.runtime.grammar_trial import TOO_MUCH, GrammarTrial
from ortloom.runtime.grammar_worker import in_child, seconds_for
from ortloom.runtime.grammars.select import COMPILE_SECONDS
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler

VOCAB, EOS = 264, 0
GOOD = StructuredOutput("regex", "[ab]+")
ENDLESS = StructuredOutput("json", json.dumps({"type": "integer", "multipleOf": 86_400_000}))
WIDE = StructuredOutput(
    "json",
    json.dumps(
        {"type": "object", "properties": {f"property_{i}": {"type": "string"} for i in range(2000)}}
    ),
)


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


def test_a_worker_that_is_killed_while_it_is_asked_is_asked_again(trial):
    """Whoever kills it (the kernel for want of memory): the constraint is not at fault."""
    trial.check(GOOD)
    real = trial._running

    def killing():
        worker = real()
        os.kill(worker.pid, signal.SIGSTOP)  # what is written to it stays unread
        threading.Timer(0.2, worker.kill).start()
        trial._running = real
        return worker

    trial._running = killing
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
    assert spent < 6.0  # its own start, and a second or two


@pytest.fixture
def compiler(path):
    made = GrammarCompiler(path, VOCAB, [EOS])
    made.load()
    return made


def test_what_was_begun_in_idleness_is_there_when_it_is_needed(trial, path):
    compiler = GrammarCompiler(path, VOCAB, [EOS], trial)
    compiler.begin_to_load()
    first = worker_pid(trial)
    for loader in threading.enumerate():
        if loader.name == "ortloom-grammars":
            loader.join(60)
    assert compiler._backend is not None
    trial.check(GOOD)
    assert worker_pid(trial) == first
    GrammarCompiler(None, VOCAB, [EOS]).begin_to_load()


def test_a_wide_schema_gets_more_time_and_others_do_not(compiler):
    usual = COMPILE_SECONDS["guidance"]
    assert seconds_for(ENDLESS, usual) == seconds_for(GOOD, usual) == usual
    assert seconds_for(StructuredOutput("json", "{"), usual) == usual
    assert seconds_for(WIDE, usual) > 2 * usual
    assert in_child(compiler, WIDE, seconds_for(WIDE, usual)) is None
    assert in_child(compiler, WIDE, 0.02) == TOO_MUCH
    assert in_child(compiler, ENDLESS, 0.1) == TOO_MUCH


def test_a_worker_that_is_ended_takes_its_child_along(trial):
    trial.check(GOOD)

    def ask():
        with suppress(InvalidRequest):
            trial.check(ENDLESS)

    asking = threading.Thread(target=ask)
    asking.start()
    task = Path(f"/proc/{worker_pid(trial)}/task/{worker_pid(trial)}/children")
    child = next(filter(None, (task.read_text().split() for _ in iter(int, 1))))[0]
    trial.close()
    asking.join(30)
    for _ in range(500):
        if not Path(f"/proc/{child}").exists():
            return
        time.sleep(0.02)
    raise AssertionError("the child lives on")


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "integer", "multipleOf": 99_999_989}, "multipleOf 99999989"),
        ({"items": {"multipleOf": 0.1234567}}, "multipleOf 0.1234567"),
        ({"$defs": {"a": {"properties": {f"p{i}": {} for i in range(2501)}}}}, "properties"),
        (
            {
                "anyOf": [
                    {"properties": {f"{side}{i}": True for i in range(2000)}} for side in "abc"
                ]
            },
            "properties",
        ),
    ],
)
def test_what_shows_at_a_glance_is_refused_at_once(compiler, schema, reason):
    began = time.thread_time()
    tag = {"format": {"type": "json_schema", "json_schema": schema}}
    for constraint in (
        StructuredOutput("json", json.dumps(schema)),
        StructuredOutput("structural_tag", json.dumps(tag)),
    ):
        with pytest.raises(InvalidRequest, match=f"too long to compile: .*{reason}"):
            compiler.compile(constraint)
    assert time.thread_time() - began < 0.5


@pytest.mark.parametrize("divisor", [0.01, 7, 2.5, 1e9, 3600, 4096, 12_345])
def test_common_divisors_are_not(compiler, divisor):
    compiler.compile(StructuredOutput("json", json.dumps({"multipleOf": divisor})))


def test_values_that_look_like_schemas_are_data(compiler):
    value = {"multipleOf": 99_999_989}
    schema = {"properties": {"multipleOf": {"enum": [value], "default": value}}}
    compiler.compile(StructuredOutput("json", json.dumps(schema)))


def test_the_worker_starts_while_the_engine_loads(trial, path):
    compiler = GrammarCompiler(path, VOCAB, [EOS], trial)
    compiler.load()
    first = worker_pid(trial)
    compiler.validate(GOOD)
    assert worker_pid(trial) == first
