"""EngineCore: admission, limits, aborts, faults, lost clients, numbers."""

import pytest
from fakes import Boom, CollectingOutbox, FakeModelRunner, Harness, make_request, solo_tokens

from ortloom.errors import EngineDead
from ortloom.runtime.messages import (
    EngineAbort,
    EngineControl,
    EngineOutputs,
    EngineReady,
    EngineReply,
)
from ortloom.runtime.sampling_params import StructuredOutput

PROMPT = list(range(8, 48))


def refused(engine, name="r"):
    (output,) = engine.outputs(name)
    assert output.finish_reason == "error"
    return output


# ---- admission


@pytest.mark.parametrize(
    ("prompt", "fields", "param", "text"),
    [
        ([], {}, "prompt", "at least one"),
        ([8, 64], {}, "prompt", "64"),
        ([8, -1], {}, "prompt", "-1"),
        ([8, 10**12], {}, "prompt", str(10**12)),
        ([8] * 101, {}, "prompt", "100 tokens"),
        ([8] * 100, {}, "prompt", "100 tokens"),
        ([8], {"top_p": 2.0}, "top_p", "top_p"),
        ([8], {"logit_bias": {99: 1.0}}, "logit_bias", "99"),
        ([8], {"logprobs": 50}, "logprobs", "50"),
    ],
)
def test_what_can_never_be_served_is_refused_and_others_go_on(prompt, fields, param, text):
    engine = Harness(FakeModelRunner(max_model_len=100))
    engine.add("other", PROMPT, 4)
    engine.add("r", prompt, 4, **fields)
    engine.run()
    output = refused(engine)
    assert (output.error_kind, output.error_param) == ("invalid", param)
    assert text in output.error
    assert engine.tokens("other") == solo_tokens(PROMPT, 4)
    engine.assert_idle()


def test_a_prompt_larger_than_the_pool_is_refused_and_never_hangs():
    engine = Harness(FakeModelRunner(num_blocks=2, max_model_len=1000))
    engine.add("r", PROMPT, 4)
    engine.run()
    output = refused(engine)
    assert output.error_kind == "invalid"
    assert "32 tokens" in output.error
    engine.assert_idle()


def test_an_id_in_use_is_refused_without_harm_to_its_owner():
    engine = Harness()
    engine.add("r", PROMPT, 4)
    engine.add("r", PROMPT, 4, client=b"c2")
    engine.run()
    mine = [m for c, m in engine.outbox.messages if c == b"c1" and isinstance(m, EngineOutputs)]
    assert [t for m in mine for o in m.outputs for t in o.new_token_ids] == solo_tokens(PROMPT, 4)
    theirs = [o for c, m in engine.outbox.messages if c == b"c2" for o in m.outputs]
    assert [o.error_kind for o in theirs] == ["invalid"]


def test_the_request_limit_refuses_with_capacity_and_counts_it():
    engine = Harness(max_num_queued_reqs=2)
    for name in "abc":
        engine.add(name, PROMPT, 4)
    engine.run()
    assert refused(engine, "c").error_kind == "capacity"
    assert engine.stats.admission_rejections == 1
    engine.add("d", PROMPT, 4)
    engine.run()
    assert engine.tokens("d") == solo_tokens(PROMPT, 4)


def test_the_token_limit_counts_prompt_tokens_not_computed_yet():
    engine = Harness(max_num_queued_tokens=60)
    engine.add("a", PROMPT, 4)
    engine.add("b", PROMPT, 4)
    engine.step()
    assert refused(engine, "b").error_kind == "capacity"
    engine.add("c", PROMPT, 4)  # a is prefilled now
    engine.run()
    assert engine.tokens("c") == solo_tokens(PROMPT, 4)


def test_unseeded_requests_draw_their_seed_from_the_configured_one():
    runs = []
    for seed in (1, 1, 2):
        engine = Harness(seed=seed)
        for name in "ab":
            engine.add(name, PROMPT, 6, temperature=1.0)
        engine.run()
        runs.append([engine.tokens(n) for n in "ab"])
    assert runs[0] == runs[1] != runs[2]
    assert runs[0][0] != runs[0][1]


def test_grammars_compile_beside_the_steps():
    engine = Harness()
    engine.add("other", PROMPT, 30)
    engine.step()
    slow = make_request("slow", PROMPT, 3, structured_output=StructuredOutput("regex", "slow"))
    bad = make_request("bad", PROMPT, 3, structured_output=StructuredOutput("regex", "bad"))
    gone = make_request("gone", PROMPT, 3, structured_output=StructuredOutput("regex", "ok"))
    for message in (slow, bad, gone):
        engine.send(message)
    engine.send(EngineAbort(["gone"]))
    before = len(engine.tokens("other"))
    engine.step()
    assert len(engine.tokens("other")) == before + 1  # did not wait 0.3 s for the compiler
    assert engine.last("gone").finish_reason == "abort"
    for _ in range(10_000_000):
        engine.step()
        if engine.outputs("bad") and engine.outputs("slow") and not engine.scheduler.has_work:
            break
    assert refused(engine, "bad").error_param == "structured_outputs"
    assert engine.tokens("slow") == solo_tokens(PROMPT, 3)


# ---- aborts


def test_an_abort_gives_blocks_back_at_the_next_step():
    engine = Harness()
    engine.add("r", PROMPT, 50)
    engine.step()
    engine.send(EngineAbort(["r", "unknown"]))
    engine.step()
    assert engine.last("r").finish_reason == "abort"
    assert engine.runner.removed == ["r"]
    assert engine.stats.finished["abort"] == 1
    engine.assert_idle()


def test_an_id_used_again_keeps_its_own_state():
    engine = Harness()
    engine.add("r", PROMPT, 50)
    engine.step()
    engine.send(EngineAbort(["r"]))
    engine.add("r", PROMPT[5:], 6)
    held = []
    execute = engine.runner.execute

    def watched(plan):
        held.append(len(engine.runner.removed))
        return execute(plan)

    engine.runner.execute = watched
    engine.run()
    assert held[0] == 1  # the old one was forgotten before the new one ran
    assert engine.runner.removed == ["r", "r"]
    assert engine.tokens("r")[-6:] == solo_tokens(PROMPT[5:], 6)


def test_a_stop_string_found_outside_counts_as_stop():
    engine = Harness()
    engine.add("r", PROMPT, 50)
    engine.step()
    engine.send(EngineAbort(["r"], "stop"))
    engine.step()
    assert engine.last("r").finish_reason == "stop"
    assert engine.stats.finished["stop"] == 1
    assert engine.stats.finished["abort"] == 0


def test_an_abort_storm_leaves_nothing():
    engine = Harness(FakeModelRunner(num_blocks=30))
    for turn in range(3):
        names = [f"r{turn}.{i}" for i in range(100)]
        for i, name in enumerate(names):
            engine.add(name, PROMPT[i % 8 : i % 8 + 20], 200)
        for _ in range(3):
            engine.step()
        for name in names:
            engine.send(EngineAbort([name]))
        engine.step()
        engine.assert_idle()
        assert not engine.scheduler.requests
        assert len(engine.scheduler.waiting) == 0
    engine.add("fresh", PROMPT, 4)
    engine.run()
    assert engine.tokens("fresh") == solo_tokens(PROMPT, 4)


# ---- faults


def test_a_failing_step_ends_its_requests_and_the_next_one_works():
    engine = Harness()
    engine.runner.faults = {2}
    engine.add("a", PROMPT, 8)
    engine.add("b", PROMPT[5:], 8)
    engine.run()
    for name in "ab":
        last = engine.last(name)
        assert (last.finish_reason, last.error_kind) == ("error", "internal")
        assert "injected" not in last.error  # internals stay inside
        assert len(engine.tokens(name)) == 1
    engine.assert_idle()
    assert engine.stats.finished["error"] == 2
    assert engine.runner.num_warm_ups == 1
    assert set(engine.runner.removed) == {"a", "b"}
    engine.add("c", PROMPT, 8)
    engine.run()
    assert engine.tokens("c") == solo_tokens(PROMPT, 8)


def test_waiting_requests_survive_a_failing_step():
    engine = Harness(max_num_seqs=1)
    engine.runner.faults = {1}
    engine.add("a", PROMPT, 4)
    engine.add("b", PROMPT, 4)
    engine.run()
    assert engine.last("a").finish_reason == "error"
    assert engine.tokens("b") == solo_tokens(PROMPT, 4)


@pytest.mark.parametrize("running", [False, True])
def test_an_allocation_that_raises_ends_one_request(monkeypatch, running):
    engine = Harness()
    engine.add("other", PROMPT[:20], 30)
    engine.step()
    engine.add("r", PROMPT, 30)
    if running:
        engine.step()
    take = engine.core.pool.take
    faults = ["no memory"]

    def failing(count):
        if faults:
            raise Boom(faults.pop())
        return take(count)

    monkeypatch.setattr(engine.core.pool, "take", failing)
    engine.run()
    assert not faults
    ends = {name: engine.last(name).finish_reason for name in ("r", "other")}
    assert sorted(ends.values()) == ["error", "length"]
    engine.assert_idle()
    engine.add("fresh", PROMPT, 4)
    engine.run()
    assert engine.tokens("fresh") == solo_tokens(PROMPT, 4)


def test_an_error_of_one_row_leaves_the_rest_of_the_step():
    engine = Harness()
    engine.runner.row_errors["bad"] = "the grammar is stuck"
    engine.add("bad", PROMPT, 4)
    engine.add("good", PROMPT, 4)
    engine.run()
    last = engine.last("bad")
    assert (last.finish_reason, last.error) == ("error", "the grammar is stuck")
    assert last.error_kind == "internal"
    assert engine.tokens("good") == solo_tokens(PROMPT, 4)
    engine.assert_idle()


def test_a_runner_that_stays_broken_ends_the_engine():
    engine = Harness()
    engine.add("a", PROMPT, 4)
    engine.runner.broken = True
    with pytest.raises(EngineDead):
        engine.step()


class ScriptedInbox:
    """Gives batches of messages, then stops the engine."""

    def __init__(self, core, batches):
        self.core = core
        self.batches = list(batches)
        self.timeouts = []

    def drain(self, timeout):
        self.timeouts.append(timeout)
        if self.batches:
            return self.batches.pop(0)
        if timeout is None:
            self.core.stop()
        return []


def test_the_loop_serves_waits_when_idle_and_ends_what_is_left():
    engine = Harness(FakeModelRunner(), debug_invariants=True)
    inbox = ScriptedInbox(engine.core, [[(b"c1", make_request("r", PROMPT, 3))]])
    outbox = CollectingOutbox()
    engine.core.run(inbox, outbox)
    tokens = [t for _, m in outbox.messages for o in m.outputs for t in o.new_token_ids]
    assert tokens == solo_tokens(PROMPT, 3)
    assert inbox.timeouts[0] is None  # idle: a blocking wait
    assert inbox.timeouts[-1] is None
    assert 0.0 in inbox.timeouts  # busy: no wait


def test_the_loop_fails_its_requests_when_the_runner_dies():
    engine = Harness()
    engine.runner.broken = True
    outbox = CollectingOutbox()
    inbox = ScriptedInbox(engine.core, [[(b"c1", make_request("r", PROMPT, 3))]])
    with pytest.raises(EngineDead):
        engine.core.run(inbox, outbox)
    ends = [o.finish_reason for _, m in outbox.messages for o in m.outputs]
    assert ends == ["error"]


# ---- clients


def test_hello_is_answered_with_the_engines_facts():
    engine = Harness(max_num_seqs=9)
    engine.send(EngineControl(0, "hello"))
    engine.step()
    ready = next(m for _, m in engine.outbox.messages if isinstance(m, EngineReady))
    assert (ready.block_size, ready.num_blocks, ready.max_num_seqs) == (16, 64, 9)
    assert ready.provider.losing == {"cuda": "no device"}
    assert ready.max_num_batched_tokens == 2048
    assert ready.cache_config["num_gpu_blocks"] == "64"


def test_stats_and_info_are_answered():
    engine = Harness()
    engine.send(EngineControl(5, "stats"))
    engine.send(EngineControl(6, "server_info"))
    engine.step()
    replies = {m.call_id: m for _, m in engine.outbox.messages if isinstance(m, EngineReply)}
    assert replies[5].stats.num_requests_running == 0
    assert replies[6].info["losing.cuda"] == "no device"


@pytest.mark.parametrize("kind", ["unreachable", "stuck"])
def test_a_lost_client_gives_its_blocks_back(kind):
    engine = Harness()
    engine.add("mine", PROMPT, 40)
    engine.add("theirs", PROMPT, 40, client=b"c2")
    engine.step()
    getattr(engine.outbox, kind).add(b"c2")
    engine.step()
    engine.step()
    assert set(engine.scheduler.requests) == {"mine"}
    engine.run()
    assert engine.tokens("mine") == solo_tokens(PROMPT, 40)
    engine.assert_idle()


def test_a_lost_client_whose_requests_only_wait_is_noticed():
    engine = Harness(max_num_seqs=1)
    engine.add("mine", PROMPT, 400)
    engine.add("theirs", PROMPT, 400, client=b"c2")
    engine.step()
    engine.outbox.unreachable.add(b"c2")
    for _ in range(120):  # 1.2 s of the engine's clock
        engine.step()
    assert set(engine.scheduler.requests) == {"mine"}


def test_a_client_that_reads_again_hears_that_its_requests_ended():
    engine = Harness()
    engine.add("theirs", PROMPT, 40, client=b"c2")
    engine.step()
    engine.outbox.stuck.add(b"c2")
    engine.step()
    assert not engine.scheduler.requests
    engine.outbox.stuck.clear()
    for _ in range(120):
        engine.step()
    assert engine.last("theirs").finish_reason == "error"


def test_gauges_reach_every_client_when_work_ends():
    engine = Harness()
    engine.send(EngineControl(0, "hello"), client=b"watcher")
    engine.step()
    engine.add("r", PROMPT, 4)
    engine.run()
    seen = [m.stats for c, m in engine.outbox.messages if c == b"watcher" and hasattr(m, "stats")]
    assert seen[-1].num_requests_running == 0
    assert seen[-1].generation_tokens == 4
