"""Random lives of an engine, and proof that the invariants notice a broken ledger."""

import pytest
from fakes import FakeModelRunner, Harness, solo_tokens
from hypothesis import HealthCheck, given, settings
from strategies import BLOCK_SIZE, scenarios

from ortloom.runtime import invariants
from ortloom.runtime.messages import EngineAbort, EngineControl
from ortloom.runtime.request import RequestStatus

PROMPT = solo_tokens([9], 64)


# ---- the simulator


def play(scenario):
    """Run a scenario; the engine, with the invariants checked after every step."""
    runner = FakeModelRunner(num_blocks=scenario.num_blocks, block_size=BLOCK_SIZE)
    engine = Harness(
        runner,
        max_num_seqs=scenario.max_num_seqs,
        max_num_batched_tokens=scenario.budget,
        long_prefill_token_threshold=scenario.threshold,
        enable_chunked_prefill=scenario.chunked,
        enable_prefix_caching=scenario.caching,
        policy=scenario.policy,
        **scenario.rules,
    )
    schedule = engine.scheduler.schedule

    def checked():
        plan = schedule()
        if plan is not None:
            invariants.check_plan(engine.scheduler, plan)
        return plan

    engine.scheduler.schedule = checked
    by_step = {}
    for number, arrival in enumerate(scenario.arrivals):
        by_step.setdefault(arrival.step, []).append((f"r{number}", arrival))
    aborts = {}
    step = 0
    while step < 4000:
        for name, arrival in by_step.pop(step, ()):
            engine.add(
                name,
                arrival.prompt,
                arrival.max_tokens,
                priority=arrival.priority,
                cache_salt=arrival.salt,
                temperature=0.0 if arrival.seeded is None else 1.0,
                seed=arrival.seeded,
                prompt_logprobs=0 if arrival.prompt_logprobs else None,
            )
            if arrival.abort_after is not None:
                aborts.setdefault(step + arrival.abort_after, []).append(name)
        if step in aborts:
            engine.send(EngineAbort(aborts.pop(step)))
        if step in scenario.resets:
            engine.send(EngineControl(step, "reset_prefix_cache", reset_running_requests=True))
        engine.step()
        step += 1
        if not by_step and not engine.scheduler.has_work:
            return engine
    raise AssertionError("the scenario does not end")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(scenarios())
def test_any_life_of_an_engine_keeps_the_invariants_and_gives_solo_outputs(scenario):
    engine = play(scenario)
    engine.assert_idle()
    capacity = scenario.num_blocks * BLOCK_SIZE
    for number, arrival in enumerate(scenario.arrivals):
        name = f"r{number}"
        outputs = engine.outputs(name)
        ends = [o.finish_reason for o in outputs if o.finish_reason]
        assert len(ends) == 1, "every request ends exactly once"
        room = min(arrival.max_tokens, capacity - len(arrival.prompt))
        expected = solo_tokens(arrival.prompt, room, arrival.seeded or 0)
        if ends == ["abort"]:
            assert arrival.abort_after is not None
            assert engine.tokens(name) == expected[: len(engine.tokens(name))]
            continue
        assert ends == ["length"]
        assert engine.tokens(name) == expected
        if arrival.prompt_logprobs:
            entries = outputs[0].prompt_logprobs
            assert entries[0] is None
            assert [e.token_ids[0] for e in entries[1:]] == list(arrival.prompt[1:])
    assert set(engine.runner.removed) == {f"r{i}" for i in range(len(scenario.arrivals))}


# ---- the invariants themselves notice


def broken_by(change):
    engine = Harness()
    engine.add("a", PROMPT[:40], 20)
    engine.add("b", PROMPT[5:45], 20)
    engine.step()
    change(engine.core.pool, engine.scheduler)
    return engine


@pytest.mark.parametrize(
    "change",
    [
        lambda pool, s: s.running[0].block_ids.append(s.running[1].block_ids[-1]),
        lambda pool, s: setattr(pool.blocks[s.running[0].block_ids[0]], "ref_count", 2),
        lambda pool, s: s.running[0].block_ids.append(0),
        lambda pool, s: pool.cached.popitem(),
        lambda pool, s: pool.free_queue.push_back(pool.blocks[s.running[0].block_ids[0]]),
        lambda pool, s: setattr(s.running[0], "num_computed_tokens", 500),
        lambda pool, s: setattr(s.running[0], "status", RequestStatus.WAITING),
        lambda pool, s: s.running.pop(),
    ],
)
def test_a_broken_ledger_is_noticed(change):
    engine = broken_by(change)
    with pytest.raises(invariants.InvariantViolation):
        invariants.check(engine.core.pool, engine.scheduler)


def test_a_changed_table_is_noticed():
    engine = broken_by(lambda pool, s: s.running[0].block_ids.reverse())
    with pytest.raises(invariants.InvariantViolation, match="table"):
        engine.watch.check(engine.scheduler)
