"""Scheduling: budget, chunks, prefix hits, preemption, order, finish rules, and a simulator."""

import pytest
from fakes import EOS, SECONDARY_EOS, Clock, FakeModelRunner, Harness, solo_tokens

from ortloom.errors import ConfigError
from ortloom.runtime import kv_cache_manager
from ortloom.runtime.messages import EngineControl

PROMPT = solo_tokens([9], 64)  # no period, so blocks differ


# ---- one request


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 32, 33, 63, 64])
def test_prompts_around_block_borders_give_the_same_tokens_each_time(length):
    engine = Harness()
    for turn in range(3):
        engine.add(f"r{turn}", PROMPT[:length], 6)
        engine.run()
        assert engine.tokens(f"r{turn}") == solo_tokens(PROMPT[:length], 6)
    # the last token is always computed, whole blocks before it are not
    assert engine.last("r2").num_cached_tokens == (length - 1) // 16 * 16
    engine.assert_idle()


def test_a_prompt_is_computed_in_chunks_of_the_budget():
    engine = Harness(max_num_batched_tokens=20)
    engine.add("r", PROMPT[:50], 2)
    engine.run()
    assert engine.runner.chunks["r"] == [(0, 20), (20, 20), (40, 10), (50, 1)]
    assert engine.tokens("r") == solo_tokens(PROMPT[:50], 2)
    assert engine.stats.num_partial_prefills == 2


def test_the_long_prefill_threshold_caps_a_chunk():
    engine = Harness(max_num_batched_tokens=64, long_prefill_token_threshold=8)
    engine.add("r", PROMPT[:20], 1)
    engine.run()
    assert engine.runner.chunks["r"] == [(0, 8), (8, 8), (16, 4)]


def test_without_chunking_prompts_are_whole_and_wait_for_room_in_the_step():
    engine = Harness(
        FakeModelRunner(max_model_len=64),
        enable_chunked_prefill=False,
        max_num_batched_tokens=64,
    )
    engine.add("a", PROMPT[:40], 2)
    engine.add("b", PROMPT[10:50], 2)
    engine.run()
    assert engine.runner.chunks["a"][0] == (0, 40)
    assert engine.runner.chunks["b"][0] == (0, 40)
    assert engine.stats.num_partial_prefills == 0


def test_without_chunking_the_budget_must_hold_the_context():
    with pytest.raises(ConfigError, match="--max-num-batched-tokens"):
        Harness(enable_chunked_prefill=False, max_num_batched_tokens=100)


def test_decodes_and_a_prefill_share_a_step():
    engine = Harness(max_num_batched_tokens=16)
    engine.add("a", PROMPT[:4], 10)
    engine.step()
    engine.add("b", PROMPT[:40], 2)
    engine.step()
    assert engine.runner.chunks["a"][-1] == (4, 1)
    assert engine.runner.chunks["b"] == [(0, 15)]
    engine.run()
    assert engine.tokens("b") == solo_tokens(PROMPT[:40], 2)


# ---- finish rules


def finished(engine, request_id="r"):
    last = engine.last(request_id)
    return last.finish_reason, last.stop_reason


def test_eos_ends_with_stop_and_no_reason():
    engine = Harness()
    engine.runner.forced["r"] = [10, EOS]
    engine.add("r", PROMPT[:4], 20)
    engine.run()
    assert engine.tokens("r") == [10, EOS]
    assert finished(engine) == ("stop", None)


def test_a_secondary_eos_gives_its_id():
    engine = Harness()
    engine.runner.forced["r"] = [10, SECONDARY_EOS]
    engine.add("r", PROMPT[:4], 20, secondary_eos_token_ids=[SECONDARY_EOS])
    engine.run()
    assert finished(engine) == ("stop", SECONDARY_EOS)


def test_ignore_eos_switches_both_kinds_off_but_not_the_users_ids():
    engine = Harness()
    engine.runner.forced["r"] = [EOS, SECONDARY_EOS, 40, 41]
    engine.add(
        "r",
        PROMPT[:4],
        20,
        ignore_eos=True,
        secondary_eos_token_ids=[SECONDARY_EOS],
        stop_token_ids=[40],
    )
    engine.run()
    assert engine.tokens("r") == [EOS, SECONDARY_EOS, 40]
    assert finished(engine) == ("stop", 40)


def test_nothing_stops_before_min_tokens():
    engine = Harness()
    engine.runner.forced["r"] = [EOS, 40, EOS, 12]
    engine.add("r", PROMPT[:4], 20, min_tokens=3, stop_token_ids=[40])
    engine.run()
    assert engine.tokens("r") == [EOS, 40, EOS]
    assert finished(engine) == ("stop", None)


def test_max_tokens_and_the_context_end_with_length():
    engine = Harness(FakeModelRunner(max_model_len=32))
    engine.add("r", PROMPT[:8], 5)
    engine.add("c", PROMPT[:30], 20)
    engine.add("open", PROMPT[:20], None)
    engine.run()
    assert len(engine.tokens("r")) == 5
    assert finished(engine) == ("length", None)
    assert len(engine.tokens("c")) == 2
    assert finished(engine, "c") == ("length", None)
    assert len(engine.tokens("open")) == 12


def test_max_tokens_zero_scores_the_prompt_only():
    engine = Harness(max_num_batched_tokens=10)
    engine.add("r", PROMPT[:24], 0, prompt_logprobs=1)
    engine.run()
    (output,) = engine.outputs("r")
    assert (output.new_token_ids, output.finish_reason) == ([], "length")
    assert output.prompt_logprobs[0] is None
    assert [e.token_ids[0] for e in output.prompt_logprobs[1:]] == PROMPT[1:24]
    assert engine.stats.generation_tokens == 0
    assert engine.stats.prompt_tokens == 24
    engine.assert_idle()


def test_times_come_with_the_first_token_and_at_the_end():
    engine = Harness()
    engine.add("r", PROMPT[:8], 3)
    engine.run()
    first, middle, last = engine.outputs("r")
    assert middle.times is None
    assert 0 < first.times.queued < first.times.first_scheduled <= first.times.first_token
    assert first.times.last_token == first.times.first_token < last.times.last_token


# ---- the prefix cache


def test_prefix_hits_are_counted_in_tokens_and_once_a_request():
    engine = Harness()
    engine.add("a", PROMPT[:40], 2)
    engine.run()
    engine.add("b", [*PROMPT[:36], 60, 61, 62, 63], 2)
    engine.run()
    assert engine.last("b").num_cached_tokens == 32
    stats = engine.stats
    assert (stats.prefix_cache_queries, stats.prefix_cache_hits) == (80, 32)
    assert (stats.prompt_tokens, stats.prompt_tokens_cached) == (80, 32)
    assert engine.tokens("b") == solo_tokens([*PROMPT[:36], 60, 61, 62, 63], 2)


def test_generated_blocks_are_shared_too():
    engine = Harness()
    engine.add("a", PROMPT[:16], 33)
    engine.run()
    follow_up = PROMPT[:16] + engine.tokens("a") + [60]
    engine.add("b", follow_up, 2)
    engine.run()
    assert engine.last("b").num_cached_tokens == 48
    assert engine.tokens("b") == solo_tokens(follow_up, 2)


def test_salts_keep_tenants_apart():
    engine = Harness()
    for name, salt in (("a", "x"), ("b", "y"), ("c", "x"), ("d", None), ("e", "y")):
        engine.add(name, PROMPT[:40], 2, cache_salt=salt)
        engine.run()
    assert [engine.last(n).num_cached_tokens for n in "abcde"] == [0, 0, 32, 0, 32]


def test_prompt_logprobs_skip_reads_but_fill_the_cache():
    engine = Harness()
    for name in "ab":
        engine.add(name, PROMPT[:40], 2, prompt_logprobs=0)
        engine.run()
        assert engine.last(name).num_cached_tokens == 0
        assert len(engine.outputs(name)[0].prompt_logprobs) == 40
    engine.add("c", PROMPT[:40], 2)
    engine.run()
    assert engine.last("c").num_cached_tokens == 32
    assert engine.stats.prefix_cache_queries == 40


def test_caching_off_never_hits():
    engine = Harness(enable_prefix_caching=False)
    for name in "ab":
        engine.add(name, PROMPT[:40], 2)
        engine.run()
    assert engine.last("b").num_cached_tokens == 0
    assert engine.stats.prefix_cache_queries == 0
    assert not engine.core.pool.cached


def test_colliding_hashes_never_mix_requests(monkeypatch):
    monkeypatch.setattr(
        kv_cache_manager, "load_digest", lambda name: lambda parent, tokens, extra: b"same"
    )
    engine = Harness(FakeModelRunner(num_blocks=16))
    for turn in range(12):
        prompt = PROMPT[turn % 3 : turn % 3 + 40]
        engine.add(f"r{turn}", prompt, 5, cache_salt="x" if turn % 2 else None)
        engine.run()
        assert engine.tokens(f"r{turn}") == solo_tokens(prompt, 5)


def test_a_prefix_partly_evicted_is_recomputed_right():
    engine = Harness(FakeModelRunner(num_blocks=6))
    engine.add("a", PROMPT[:64], 2)
    engine.run()
    engine.add("b", [60] * 60, 2)  # takes two worthless blocks and two of the tail
    engine.run()
    engine.add("c", PROMPT[:64], 2)
    engine.run()
    assert engine.last("c").num_cached_tokens == 32
    assert engine.tokens("c") == solo_tokens(PROMPT[:64], 2)


def test_reset_waits_for_blocks_in_use_unless_told_to_preempt():
    engine = Harness()
    engine.add("a", PROMPT[:40], 30)
    for _ in range(4):
        engine.step()
    engine.send(EngineControl(1, "reset_prefix_cache"))
    engine.step()
    engine.send(EngineControl(2, "reset_prefix_cache", reset_running_requests=True))
    engine.run()
    replies = {m.call_id: m.success for _, m in engine.outbox.messages if hasattr(m, "call_id")}
    assert replies == {1: False, 2: True}
    assert engine.tokens("a") == solo_tokens(PROMPT[:40], 30)
    assert engine.stats.num_preemptions == 1
    engine.send(EngineControl(3, "reset_prefix_cache"))
    assert not engine.core.pool.cached
    engine.add("b", PROMPT[:40], 2)
    engine.run()
    assert engine.last("b").num_cached_tokens == 0


# ---- preemption


def test_a_pool_too_small_for_all_still_finishes_all_as_if_alone():
    engine = Harness(FakeModelRunner(num_blocks=40))
    prompts = [[8 + (i * 7 + j) % 50 for j in range(64)] for i in range(24)]
    for i, prompt in enumerate(prompts):
        engine.add(f"r{i}", prompt, 128, ignore_eos=True)
    engine.run(max_steps=3000)
    for i, prompt in enumerate(prompts):
        assert engine.tokens(f"r{i}") == solo_tokens(prompt, 128)
        assert engine.last(f"r{i}").finish_reason == "length"
    assert engine.stats.num_preemptions > 0
    assert engine.stats.prompt_tokens == 24 * 64
    assert engine.stats.generation_tokens == 24 * 128
    engine.assert_idle()


def test_preemption_keeps_seeded_draws_and_prompt_logprobs():
    alone = Harness(FakeModelRunner(num_blocks=40))
    tight = Harness(FakeModelRunner(num_blocks=9), max_num_batched_tokens=16)
    for engine in (alone, tight):
        for i in range(4):
            engine.add(f"r{i}", PROMPT[i : i + 20], 50, temperature=1.0, seed=i, prompt_logprobs=0)
        engine.run()
    assert tight.stats.num_preemptions > 0
    for i in range(4):
        assert tight.tokens(f"r{i}") == alone.tokens(f"r{i}")
        assert tight.outputs(f"r{i}")[0].prompt_logprobs == (
            alone.outputs(f"r{i}")[0].prompt_logprobs
        )


def test_prompt_logprobs_of_chunks_computed_twice_are_kept_once():
    engine = Harness(max_num_batched_tokens=10)
    engine.add("r", PROMPT[:40], 2, prompt_logprobs=0)
    for _ in range(3):
        engine.step()
    engine.send(EngineControl(1, "reset_prefix_cache", reset_running_requests=True))
    engine.run()
    assert engine.runner.chunks["r"][:4] == [(0, 10), (10, 10), (20, 10), (0, 10)]
    entries = engine.outputs("r")[0].prompt_logprobs
    assert entries[0] is None
    assert [e.token_ids[0] for e in entries[1:]] == PROMPT[1:40]


def test_the_latest_arrival_is_preempted_under_fcfs():
    engine = Harness(FakeModelRunner(num_blocks=6))
    engine.add("old", PROMPT[:30], 40)
    engine.clock.now += 1
    engine.add("new", PROMPT[5:35], 40, priority=-5)
    engine.run()
    assert engine.last("old").num_preemptions == 0
    assert engine.last("new").num_preemptions > 0


def test_the_lowest_priority_is_preempted_under_priority():
    engine = Harness(FakeModelRunner(num_blocks=6), policy="priority")
    engine.add("low", PROMPT[:30], 40, priority=5)
    engine.clock.now += 1
    engine.add("high", PROMPT[5:35], 40, priority=-5)
    engine.run()
    assert engine.last("high").num_preemptions == 0
    assert engine.last("low").num_preemptions > 0


def test_a_lone_request_may_fill_the_whole_pool():
    engine = Harness(FakeModelRunner(num_blocks=4, max_model_len=1000))
    engine.add("r", PROMPT[:50], None)
    engine.run()
    assert len(engine.tokens("r")) == 15  # 64 places; the last token needs none
    assert engine.last("r").finish_reason == "length"


# ---- order


def first_steps(engine, names):
    return [engine.last(n).times.first_scheduled for n in names]


def test_fcfs_serves_in_order_of_arrival():
    engine = Harness(max_num_seqs=1)
    for name in "abc":
        engine.add(name, PROMPT[:8], 3)
        engine.clock.now += 0.001
    engine.run()
    times = first_steps(engine, "abc")
    assert times == sorted(times)
    assert len(set(times)) == 3


def test_priority_serves_the_urgent_first():
    engine = Harness(max_num_seqs=1, policy="priority")
    for name, priority in (("a", 3), ("b", 0), ("c", -1), ("d", 0)):
        engine.add(name, PROMPT[:8], 3, priority=priority)
        engine.clock.now += 0.001
    engine.run()
    times = first_steps(engine, "cbda")
    assert times == sorted(times)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_a_steady_flow_of_urgent_requests_starves_nobody(policy):
    clock = Clock()
    engine = Harness(clock=clock, max_num_seqs=1, policy=policy)
    engine.add("patient", PROMPT[:8], 2, priority=1)
    engine.add("u0", PROMPT[:8], 2, priority=0)
    for turn in range(1, 60):
        engine.add(f"u{turn}", PROMPT[:8], 2, priority=0)
        clock.now += 5.0
        engine.step()
        engine.step()
        if engine.outputs("patient"):
            break
    assert engine.outputs("patient"), "it still waits"
    assert clock.now - 1000.0 < 120


def test_a_large_request_at_the_head_is_not_overtaken_for_ever():
    engine = Harness(FakeModelRunner(num_blocks=12))
    for i in range(8):
        engine.add(f"s{i}", PROMPT[i : i + 16], 20)
    engine.add("large", PROMPT[:64] + PROMPT[:64], 20)
    for turn in range(8, 40):
        engine.add(f"s{turn}", PROMPT[turn % 16 : turn % 16 + 16], 20)
        engine.step()
    engine.run()
    assert engine.tokens("large") == solo_tokens(PROMPT[:64] + PROMPT[:64], 20)
    later = [engine.last(f"s{i}").times.first_scheduled for i in range(9, 40)]
    assert engine.last("large").times.first_scheduled <= min(later)


def test_max_num_seqs_is_kept():
    engine = Harness(max_num_seqs=3)
    for i in range(10):
        engine.add(f"r{i}", PROMPT[: 4 + i], 5)
    engine.step()
    assert (engine.stats.num_requests_running, engine.stats.num_requests_waiting) == (3, 7)
    engine.run()
