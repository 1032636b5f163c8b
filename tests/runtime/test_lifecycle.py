"""Pausing, sleeping and waking of an engine, step by step over a runner with a memory."""

import pytest
from fakes import FakeModelRunner, Harness, make_request, solo_tokens

from ortloom.runtime.engine_profile import EngineProfile
from ortloom.runtime.external_ids import belonging_to
from ortloom.runtime.messages import EngineAbort, EngineControl, EngineReply

PROMPT = list(range(8, 48))
OTHER = list(range(9, 60))


def call(engine, method, **fields):
    """Make a control call and run the step that answers it; None = not answered yet."""
    number = len(engine.outbox.messages) + 1000
    engine.send(EngineControl(number, method, **fields))
    engine.step()
    return answer(engine, number)


def answer(engine, number):
    for _, message in engine.outbox.messages:
        if isinstance(message, EngineReply) and message.call_id == number:
            return message
    return None


def started(*names, steps=3, **options):
    engine = Harness(**options)
    for name in names:
        engine.add(name, PROMPT if name == "a" else OTHER, 12)
    for _ in range(steps):
        engine.step()
    return engine


def idle_steps(engine, count=5):
    before = engine.runner.num_steps
    for _ in range(count):
        engine.step()
    return engine.runner.num_steps == before


def test_keep_freezes_and_resume_goes_on():
    engine = started("a", "b")
    reply = call(engine, "pause", mode="keep")
    assert reply.success
    assert reply.info == {"paused": "1", "sleeping": "0"}
    engine.add("late", PROMPT, 4)
    assert idle_steps(engine)
    assert not engine.outputs("late")
    assert call(engine, "resume").info["paused"] == "0"
    engine.run()
    assert engine.tokens("a") == solo_tokens(PROMPT, 12)
    assert engine.tokens("b") == solo_tokens(OTHER, 12)
    assert engine.tokens("late") == solo_tokens(PROMPT, 4)


def test_keep_with_a_cleared_cache_computes_again():
    engine = started("a")
    hits = engine.stats.prefix_cache_hits
    assert call(engine, "pause", mode="keep", clear_cache=True).success
    assert engine.stats.num_preemptions == 1
    call(engine, "resume")
    engine.run()
    assert engine.tokens("a") == solo_tokens(PROMPT, 12)
    assert engine.stats.prefix_cache_hits == hits


def test_abort_ends_what_runs():
    engine = started("a", "b")
    assert call(engine, "pause", mode="abort", clear_cache=True).success
    assert [engine.last(n).finish_reason for n in "ab"] == ["abort", "abort"]
    assert engine.core.pool.num_free == engine.runner.num_blocks
    engine.add("late", PROMPT, 4)
    assert idle_steps(engine)
    call(engine, "resume")
    engine.run()
    assert engine.tokens("late") == solo_tokens(PROMPT, 4)


def test_wait_lets_requests_finish_and_holds_new_ones_back():
    engine = started("a")
    number = 7
    engine.send(EngineControl(number, "pause", mode="wait"))
    engine.step()
    engine.add("late", OTHER, 4)
    engine.add("given up", OTHER, 4)
    engine.send(EngineAbort(["given up"]))
    assert call(engine, "state").info["paused"] == "1"
    assert answer(engine, number) is None
    for _ in range(40):
        engine.step()
    assert engine.tokens("a") == solo_tokens(PROMPT, 12)
    assert answer(engine, number).success
    assert engine.last("given up").finish_reason == "abort"
    assert not engine.outputs("late")
    call(engine, "resume")
    engine.run()
    assert engine.tokens("late") == solo_tokens(OTHER, 4)


def test_wait_with_nothing_to_wait_for_answers_at_once():
    engine = Harness()
    assert call(engine, "pause", mode="wait").success


@pytest.mark.parametrize(
    ("method", "ending"),
    [("pause", "resume"), ("sleep", "wake_up"), ("release_kv_cache", "wake_up")],
)
def test_what_still_waits_is_over_with_the_call_that_ends_it(method, ending):
    """Else the engine would be held after it was told to go on."""
    engine = started("a")
    number = 7
    engine.send(EngineControl(number, method, mode="wait"))
    engine.step()
    engine.add("late", OTHER, 4)
    assert answer(engine, number) is None
    other = "wake_up" if ending == "resume" else "resume"
    call(engine, other)
    assert answer(engine, number) is None
    assert call(engine, ending).info == {"paused": "0", "sleeping": "0"}
    assert answer(engine, number).info == {"paused": "0", "sleeping": "0"}
    engine.run()
    assert engine.tokens("a") == solo_tokens(PROMPT, 12)
    assert engine.tokens("late") == solo_tokens(OTHER, 4)
    assert call(engine, "state").info == {"paused": "0", "sleeping": "0"}
    assert not engine.runner.absent


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_sleep_gives_memory_back_and_waking_has_it_again(level, mode):
    engine = started("a", steps=20 if mode == "wait" else 3)
    reply = call(engine, "sleep", level=level, mode=mode)
    assert reply.success
    assert reply.info["sleeping"] == "1"
    assert engine.stats.sleep_level == level
    assert engine.runner.absent == {"kv_cache": False, "weights": level == 2}
    engine.add("late", PROMPT, 4)
    assert idle_steps(engine)
    assert call(engine, "wake_up", tags=["kv_cache"]).info["sleeping"] == "1"
    assert idle_steps(engine)
    assert call(engine, "wake_up", tags=["weights"]).info["sleeping"] == "0"
    assert engine.stats.sleep_level == 0
    assert not engine.runner.absent
    engine.run()
    assert engine.tokens("late") == solo_tokens(PROMPT, 4)
    assert engine.stats.prefix_cache_hits == 0
    if mode == "abort":
        assert engine.last("a").finish_reason == "abort"
    else:
        assert engine.tokens("a") == solo_tokens(PROMPT, 12)


def test_level_0_only_pauses():
    engine = started("a")
    assert call(engine, "sleep", level=0, mode="keep").info["sleeping"] == "1"
    assert not engine.runner.absent
    assert idle_steps(engine)
    call(engine, "wake_up")
    engine.run()
    assert engine.tokens("a") == solo_tokens(PROMPT, 12)


def test_a_pause_outlasts_sleep():
    engine = Harness()
    call(engine, "pause", mode="keep")
    call(engine, "sleep", level=1)
    assert call(engine, "wake_up").info == {"paused": "1", "sleeping": "0"}
    engine.add("a", PROMPT, 4)
    assert idle_steps(engine)
    call(engine, "resume")
    engine.run()
    assert engine.tokens("a") == solo_tokens(PROMPT, 4)


def test_the_kv_cache_alone_can_be_given_back():
    engine = started("a")
    assert call(engine, "release_kv_cache").success
    assert engine.runner.absent == {"kv_cache": False}
    assert engine.last("a").finish_reason == "abort"
    call(engine, "wake_up", tags=["kv_cache"])
    engine.add("b", OTHER, 4)
    engine.run()
    assert engine.tokens("b") == solo_tokens(OTHER, 4)


def test_sleeping_twice_and_waking_twice_is_no_error():
    engine = Harness()
    for _ in range(2):
        assert call(engine, "sleep", level=1).success
    assert call(engine, "sleep", level=2).success
    for _ in range(2):
        assert call(engine, "wake_up").success
    assert not engine.runner.absent


def test_memory_that_cannot_be_had_again_is_told_and_may_be_tried_again():
    class Poor(FakeModelRunner):
        poor = True

        def restore(self, part):
            if self.poor:
                raise MemoryError("no room")
            super().restore(part)

    engine = Harness(Poor())
    call(engine, "sleep", level=1)
    reply = call(engine, "wake_up")
    assert not reply.success
    assert "no room" in reply.error
    assert reply.info["sleeping"] == "1"
    engine.runner.poor = False
    assert call(engine, "wake_up").info["sleeping"] == "0"


IDS = ["cmpl-x-0a1b2c3d-0", "cmpl-x-0a1b2c3d-1", "chatcmpl-x-y-0a1b2c3d-0", "resp_z-0a1b2c3d-0"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("x", IDS[:2]),
        ("cmpl-x", IDS[:2]),
        ("cmpl-x-0a1b2c3d-1", IDS[1:2]),
        ("x-y", IDS[2:3]),
        ("y", []),
        ("z", IDS[3:]),
        ("cmpl", []),
    ],
)
def test_the_ids_clients_know(name, found):
    assert belonging_to([name], IDS) == found


def test_requests_are_aborted_by_the_ids_clients_know():
    engine = Harness()
    for name in IDS:
        engine.send(make_request(name, PROMPT, 40))
    engine.step()
    assert call(engine, "abort", request_ids=["x", "nobody"]).info == {"aborted": "2"}
    assert [engine.last(i).finish_reason for i in IDS] == ["abort", "abort", None, None]
    assert call(engine, "abort").info == {"aborted": "2"}
    assert not engine.scheduler.has_work


def test_a_profile_names_the_functions_that_ran(tmp_path):
    import pstats

    profile = EngineProfile(tmp_path / "new")
    assert profile.stop() is None
    profile.start()
    profile.start()
    solo_tokens(PROMPT, 2)
    path = profile.stop()
    names = {name for _, _, name in pstats.Stats(str(path)).stats}
    assert "next_token" in names


def test_an_engine_without_a_profiler_says_so():
    reply = call(Harness(), "start_profile")
    assert not reply.success
    assert "no profiler" in reply.error
