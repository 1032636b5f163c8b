"""Rules of admission and of long prompts, and the policies' promise that nobody starves."""

import sys
import types

import pytest
from fakes import FakeModelRunner, Harness, solo_tokens

from ortloom.errors import ConfigError
from ortloom.runtime.policies.lpm import AGE_BOUND
from ortloom.runtime.policies.priority import SECONDS_PER_LEVEL
from ortloom.runtime.scheduler import Scheduler

PROMPT = solo_tokens([9], 400)


def chunks(engine, name):
    return engine.runner.chunks[name]


def test_scheduled_tokens_cap_a_step_below_the_batched_ones():
    engine = Harness(max_num_batched_tokens=64, max_num_scheduled_tokens=24)
    engine.add("r", PROMPT[:60], 1)
    engine.run()
    assert chunks(engine, "r") == [(0, 24), (24, 24), (48, 12)]
    with pytest.raises(ConfigError, match="--max-num-scheduled-tokens"):
        Harness(max_num_batched_tokens=64, max_num_scheduled_tokens=65)


def test_active_sequences_cap_who_runs():
    engine = Harness(max_num_seqs=8, max_num_active_seqs=2)
    for name in "abcd":
        engine.add(name, PROMPT[:4], 3)
    engine.step()
    assert [r.request_id for r in engine.scheduler.running] == ["a", "b"]
    engine.run()
    assert all(len(engine.tokens(name)) == 3 for name in "abcd")


def test_prompts_are_computed_side_by_side_and_short_ones_pass_long_ones():
    engine = Harness(
        max_num_batched_tokens=32,
        long_prefill_token_threshold=8,
        max_num_partial_prefills=3,
        max_long_partial_prefills=1,
    )
    engine.add("long", PROMPT[:40], 1)
    engine.add("second", PROMPT[50:90], 1)
    engine.add("short", PROMPT[100:106], 1)
    engine.step()
    assert chunks(engine, "long") == [(0, 8)]
    assert chunks(engine, "second") == []
    assert chunks(engine, "short") == [(0, 6)]
    engine.run()
    for name, prompt in (("long", PROMPT[:40]), ("second", PROMPT[50:90])):
        assert engine.tokens(name) == solo_tokens(prompt, 1)
        assert chunks(engine, name) == [(start, 8) for start in range(0, 40, 8)]


def test_no_more_prompts_than_allowed_are_computed_in_parts():
    engine = Harness(
        FakeModelRunner(num_blocks=200),
        max_num_batched_tokens=64,
        long_prefill_token_threshold=8,
        max_num_partial_prefills=2,
        max_long_partial_prefills=2,
    )
    for index in range(4):
        engine.add(f"r{index}", PROMPT[index * 50 : index * 50 + 40], 1)
    most = 0
    while engine.scheduler.has_work:
        engine.step()
        unfinished = [r for r in engine.scheduler.running if not r.prefilled]
        most = max(most, len(unfinished))
    assert most == 2


def test_the_threshold_of_side_by_side_prompts_is_a_share_of_the_context():
    engine = Harness(FakeModelRunner(max_model_len=500), max_num_partial_prefills=2)
    engine.add("r", PROMPT[:45], 1)
    engine.run()
    assert chunks(engine, "r") == [(0, 20), (20, 20), (40, 5)]


def test_an_adaptive_threshold_is_a_fair_share_of_the_step():
    engine = Harness(
        max_num_batched_tokens=40,
        long_prefill_token_threshold=4,
        long_prefill_token_threshold_adaptive=True,
    )
    engine.add("alone", PROMPT[:60], 1)
    engine.run()
    assert chunks(engine, "alone") == [(0, 40), (40, 20)]
    engine.add("a", PROMPT[100:160], 1)
    engine.add("b", PROMPT[200:260], 1)
    engine.step()
    assert chunks(engine, "a") == [(0, 20)]
    assert chunks(engine, "b") == [(0, 20)]


@pytest.mark.parametrize(("reserve", "running"), [(True, 1), (False, 2)])
def test_a_prompt_is_admitted_by_its_whole_length_or_its_first_part(reserve, running):
    runner = FakeModelRunner(num_blocks=6, block_size=4)
    engine = Harness(runner, max_num_batched_tokens=8, reserve_full_prompt=reserve)
    engine.add("a", PROMPT[:4], 8)
    engine.add("b", PROMPT[50:70], 2)
    engine.step()
    engine.step()
    assert len(engine.scheduler.running) == running
    engine.run()
    assert engine.tokens("b") == solo_tokens(PROMPT[50:70], 2)


@pytest.mark.parametrize(("watermark", "running"), [(0.0, 3), (0.5, 2)])
def test_the_watermark_keeps_blocks_free_on_admission(watermark, running):
    runner = FakeModelRunner(num_blocks=12, block_size=4)
    engine = Harness(runner, watermark=watermark, max_num_batched_tokens=64)
    for index in range(3):
        engine.add(f"r{index}", PROMPT[index * 20 : index * 20 + 7], 3)
    engine.step()
    assert len(engine.scheduler.running) == running
    engine.run()


def test_admissions_are_so_many_steps_apart():
    engine = Harness(prefill_schedule_interval=4)
    engine.add("a", PROMPT[:4], 20)
    engine.step()
    engine.add("b", PROMPT[:4], 4)
    running = []
    for _ in range(4):
        engine.step()
        running.append(len(engine.scheduler.running))
    assert running == [1, 1, 1, 2]


# ---- order


def waiting_times(policy, *, urgent_every, steps, old, tick=0.0):
    """Seconds an old request waits for its first token beside a steady flow of better ones;
    a step takes 0.01 s and `tick`."""
    runner = FakeModelRunner(num_blocks=64, block_size=4)
    engine = Harness(runner, policy=policy, max_num_seqs=1)
    shared = PROMPT[:16]
    engine.add("first", [*shared, 8], 2)
    engine.step()
    engine.add("old", **old)
    begun = engine.clock.now
    for number in range(steps):
        if number % urgent_every == 0:
            engine.add(f"u{number}", [*shared, 9 + number % 40], 3, priority=-1)
        engine.clock.now += tick
        engine.step()
        if engine.tokens("old"):
            return engine.clock.now - begun
    return None


def test_lpm_serves_the_longest_cached_prefix_first():
    engine = Harness(FakeModelRunner(num_blocks=64, block_size=4), policy="lpm", max_num_seqs=1)
    engine.add("first", PROMPT[:17], 3)
    engine.step()
    engine.add("cold", PROMPT[100:117], 1)
    engine.add("warm", [*PROMPT[:16], 11], 1)
    order = []
    while engine.scheduler.has_work:
        engine.step()
        order += [r.request_id for r in engine.scheduler.running if r.request_id not in order]
    ends = [o.request_id for _, m in engine.outbox.messages for o in getattr(m, "outputs", ())]
    assert ends.index("warm") < ends.index("cold")


def test_lpm_overtakes_a_request_up_to_the_age_bound_and_no_longer():
    old = {"prompt": PROMPT[200:217], "max_tokens": 1}
    waited = waiting_times("lpm", urgent_every=2, steps=2000, old=old, tick=0.04)
    assert AGE_BOUND * 0.9 < waited < AGE_BOUND + 0.5
    assert waiting_times("fcfs", urgent_every=2, steps=2000, old=old) < 0.5


def test_priority_lets_a_level_wait_no_longer_than_its_ageing():
    old = {"prompt": PROMPT[200:217], "max_tokens": 1, "priority": 0}
    waited = waiting_times("priority", urgent_every=3, steps=2000, old=old, tick=0.49)
    assert SECONDS_PER_LEVEL * 0.5 < waited < SECONDS_PER_LEVEL + 5.0


# ---- a scheduler of the user's own


def test_a_scheduler_class_is_imported_and_used(monkeypatch):
    module = types.ModuleType("own_scheduler")

    class Mine(Scheduler):
        pass

    module.Mine = Mine
    module.Other = dict
    monkeypatch.setitem(sys.modules, "own_scheduler", module)
    for path in ("own_scheduler.Mine", "own_scheduler:Mine"):
        assert type(Harness(scheduler_cls=path).scheduler) is Mine
    for path, text in (
        ("own_scheduler.Other", "not a subclass"),
        ("own_scheduler.Gone", "cannot import"),
        ("no_such_module.X", "cannot import"),
        ("X", "not of the form"),
    ):
        with pytest.raises(ConfigError, match=text):
            Harness(scheduler_cls=path)
