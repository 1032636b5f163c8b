"""The scheduler's section of the configuration."""

from ortloom.commands.reader import Reader
from ortloom.config import SchedulerConfig
from ortloom.environment import Environment
from ortloom.errors import ConfigError


def scheduler_config(read: Reader, env: Environment, notices: list[str]) -> SchedulerConfig:
    """Build it; lines to print before start are added to `notices`.

    Raises:
        ConfigError: a value is out of range.
    """
    base = SchedulerConfig()
    budget = read.whole("--max-num-batched-tokens", 1)
    seqs = read.whole("--max-num-seqs", 1)
    if seqs is None:
        seqs = base.max_num_seqs if budget is None else min(base.max_num_seqs, budget)
    if read.maybe("--preemption-mode", str) == "swap":
        raise ConfigError(
            "argument --preemption-mode: 'swap' cannot be had here: there is no swap space for "
            "KV blocks; preempted requests recompute (recompute)"
        )
    if read.maybe("--disable-hybrid-kv-cache-manager", bool) is False:
        notices.append(
            "--no-disable-hybrid-kv-cache-manager: all kinds of layers share one KV layout here, "
            "with this flag and without"
        )
    threshold = read.whole("--long-prefill-token-threshold", 0) or 0
    partial = read.whole("--max-num-partial-prefills", 1) or 1
    adaptive = read.get("--long-prefill-token-threshold-adaptive", bool, False)
    if adaptive and not threshold and partial == 1:
        notices.append(
            "--long-prefill-token-threshold-adaptive does nothing without "
            "--long-prefill-token-threshold"
        )
    return SchedulerConfig(
        max_num_seqs=seqs,
        max_num_active_seqs=read.whole("--max-num-active-seqs", 1),
        max_num_batched_tokens=budget,
        max_num_scheduled_tokens=read.whole("--max-num-scheduled-tokens", 1),
        enable_chunked_prefill=read.get("--enable-chunked-prefill", bool, True),
        long_prefill_token_threshold=threshold,
        long_prefill_token_threshold_adaptive=adaptive,
        max_num_partial_prefills=partial,
        max_long_partial_prefills=read.whole("--max-long-partial-prefills", 1) or 1,
        reserve_full_prompt=read.get("--scheduler-reserve-full-isl", bool, True),
        watermark=read.share("--watermark", 0.0, 1.0),
        prefill_schedule_interval=read.whole("--prefill-schedule-interval", 1) or 1,
        stream_interval=read.whole("--stream-interval", 1) or 1,
        policy=read.word("--scheduling-policy", "fcfs"),
        scheduler_cls=read.maybe("--scheduler-cls", str),
        async_scheduling=read.maybe("--async-scheduling", bool),
        max_num_queued_reqs=read.whole("--max-num-queued-reqs", 1),
        max_num_queued_tokens=read.whole("--max-num-queued-tokens", 1),
        step_timeout=env.step_timeout,
        step_log=env.step_log,
    )
