"""Flags of the scheduler and what they become."""

import pytest

from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ConfigError
from ortloom.flags import flag_table


def plan(line, env=None):
    return make_plan(["m", *line.split()], read_environment(env or {}), flag_table())[1]


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        ("--max-num-active-seqs 3", "max_num_active_seqs", 3),
        ("--max-num-scheduled-tokens 2k", "max_num_scheduled_tokens", 2000),
        ("--max-num-partial-prefills 4", "max_num_partial_prefills", 4),
        (
            "--max-long-partial-prefills 2 --max-num-partial-prefills 2",
            "max_long_partial_prefills",
            2,
        ),
        (
            "--long-prefill-token-threshold-adaptive --long-prefill-token-threshold 9",
            "long_prefill_token_threshold_adaptive",
            True,
        ),
        ("--no-scheduler-reserve-full-isl", "reserve_full_prompt", False),
        ("--watermark 0.25", "watermark", 0.25),
        ("--prefill-schedule-interval 3", "prefill_schedule_interval", 3),
        ("--stream-interval 5", "stream_interval", 5),
        ("--scheduling-policy lpm", "policy", "lpm"),
        ("--scheduler-cls a.b.C", "scheduler_cls", "a.b.C"),
        ("--async-scheduling", "async_scheduling", True),
        ("--no-async-scheduling", "async_scheduling", False),
        ("", "async_scheduling", None),
        ("", "step_timeout", None),
    ],
)
def test_flags_reach_the_scheduler(line, field, value):
    got = plan(line)
    assert getattr(got.config.scheduler, field) == value
    assert got.notices == ()


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("--preemption-mode swap", "'swap' cannot be had here"),
        ("--watermark 1.0", "at least 0 and below 1"),
        ("--watermark -0.1", "at least 0 and below 1"),
        ("--prefill-schedule-interval 0", "at least 1"),
        ("--stream-interval 0", "at least 1"),
        ("--max-num-partial-prefills 0", "at least 1"),
        ("--max-num-active-seqs 0", "at least 1"),
        ("--max-num-active-seqs 300", "must be at most --max-num-seqs"),
        ("--max-long-partial-prefills 2", "must be at most --max-num-partial-prefills"),
        (
            "--max-num-scheduled-tokens 9 --max-num-batched-tokens 8",
            "must be at most --max-num-batched-tokens",
        ),
    ],
)
def test_values_that_cannot_be(line, text):
    with pytest.raises(ConfigError, match=text) as caught:
        plan(line)
    assert caught.value.exit_code == 2


def test_an_adaptive_threshold_without_a_threshold_says_that_it_does_nothing():
    (line,) = plan("--long-prefill-token-threshold-adaptive").notices
    assert "does nothing without --long-prefill-token-threshold" in line


def test_the_environment_sets_the_watchdog_and_the_heartbeat():
    got = plan("", {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "12", "VT_ENGINE_STEP_LOG": "1"})
    assert got.config.scheduler.step_timeout == 12.0
    assert got.config.scheduler.step_log
    assert not plan("", {"VT_ENGINE_STEP_LOG": "0"}).config.scheduler.step_log
