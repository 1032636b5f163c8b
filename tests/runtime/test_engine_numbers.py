"""Counters and the periodic line."""

from fakes import Harness, solo_tokens

from ortloom.runtime.messages import EngineControl

PROMPT = solo_tokens([9], 40)


def test_iteration_tokens_count_prompt_and_generated_tokens_of_each_step():
    engine = Harness(max_num_batched_tokens=20)
    engine.add("r", PROMPT[:30], 3)
    engine.run()
    stats = engine.stats
    # steps: 20 prompt | 10 prompt + 1 | 1 | 1
    assert stats.num_steps == 4
    assert stats.iteration_tokens_sum == 20 + 11 + 1 + 1
    assert stats.iteration_tokens[:4] == [2, 0, 1, 1]
    assert sum(stats.iteration_tokens) == 4
    assert stats.finished["length"] == 1


def test_a_line_of_numbers_each_interval_and_none_while_idle(caplog):
    caplog.set_level("INFO", "ortloom.engine")
    engine = Harness(stats_interval=10.0)
    engine.add("r", PROMPT, 5)
    engine.run()
    for _ in range(3):
        engine.clock.now += 11
        engine.send(EngineControl(0, "hello"))
        engine.step()
    (line,) = [r.getMessage() for r in caplog.records]
    assert "running 0, waiting 0" in line
    assert "prefix cache hits 0.0%" in line
    silent = Harness(log_stats=False)
    silent.add("r", PROMPT, 5)
    silent.run()
    silent.clock.now += 11
    silent.step()
    assert len(caplog.records) == 1
