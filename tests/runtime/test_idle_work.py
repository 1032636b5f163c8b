"""Work that waits for a moment without requests."""

import threading

from engines import collect, run, until
from fakes import FakeModelRunner, make_config, make_request

from ortloom.runtime import idle_work
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.idle_work import IDLE_SECONDS, IdleWork
from ortloom.runtime.in_process_client import InProcessClient


def test_it_waits_for_a_whole_moment_and_is_done_once():
    now, done, calls = [0.0], threading.Event(), []

    def work():
        calls.append(now[0])
        done.set()

    idle = IdleWork(work, lambda: now[0])
    now[0] += 5 * IDLE_SECONDS
    idle.note(False)
    assert not done.is_set()  # nobody has come yet
    idle.note(True)
    for seconds, busy in [(0.9, False), (0.2, True), (0.9, False), (0.05, True), (0.99, False)]:
        now[0] += seconds * IDLE_SECONDS
        idle.note(busy)
        assert not done.is_set()
        assert idle.patience == IDLE_SECONDS
    now[0] += 0.02 * IDLE_SECONDS
    idle.note(False)
    assert done.is_set()
    assert idle.patience is None
    now[0] += 10
    idle.note(False)
    assert len(calls) == 1


def test_an_engine_does_it_while_nobody_asks(monkeypatch):
    monkeypatch.setattr(idle_work, "IDLE_SECONDS", 0.05)
    done = threading.Event()

    def fails():
        done.set()
        raise RuntimeError("nobody minds")

    def make():
        core = EngineCore(make_config(), FakeModelRunner())
        core.idle_work = IdleWork(fails, core.clock)
        return core

    async def body():
        client = InProcessClient(make)
        await client.start()
        try:
            await client.wait_ready()
            await until(done.is_set)
            tokens, _ = await collect(client, make_request("r", [9, 8, 7], 4))
            assert len(tokens) == 4
        finally:
            await client.close()

    run(body())
