"""Cumulative counters of the engine; `snapshot` joins them with the gauges of the moment."""

from bisect import bisect_left

from ortloom.runtime.messages import ITERATION_TOKENS_BUCKETS, EngineStats, FinishReason
from ortloom.runtime.request import Request
from ortloom.runtime.scheduler_output import SchedulerOutput


class EngineCounters:
    """Counters since start; they never fall."""

    def __init__(self) -> None:
        self.num_steps = 0
        self.num_preemptions = 0
        self.prompt_tokens = 0
        self.prompt_tokens_cached = 0
        self.generation_tokens = 0
        self.prefix_cache_queries = 0
        self.prefix_cache_hits = 0
        self.num_partial_prefills = 0
        self.jump_forward_tokens = 0
        self.iteration_tokens = [0] * (len(ITERATION_TOKENS_BUCKETS) + 1)
        self.iteration_tokens_sum = 0
        self.admission_rejections = 0
        self.sleep_level = 0
        self.corrupted_requests = 0
        self.finished: dict[FinishReason, int] = {"stop": 0, "length": 0, "abort": 0, "error": 0}

    def count_lookup(self, request: Request, num_hit_tokens: int) -> None:
        """A request was looked up in the prefix cache when it was first scheduled."""
        self.prefix_cache_queries += request.num_prompt_tokens
        self.prefix_cache_hits += num_hit_tokens

    def count_prefill(self, request: Request) -> None:
        """A prompt is wholly computed for the first time."""
        self.prompt_tokens += request.num_prompt_tokens
        self.prompt_tokens_cached += request.num_cached_tokens

    def count_step(self, plan: SchedulerOutput, num_generated: int) -> None:
        """A step is done: prompt tokens it computed plus tokens it generated."""
        prompt = 0
        for item in plan.scheduled:
            end = item.start + item.num_tokens
            prompt += max(0, min(end, item.request.num_prompt_tokens) - item.start)
        total = prompt + num_generated
        self.num_steps += 1
        self.generation_tokens += num_generated
        self.iteration_tokens[bisect_left(ITERATION_TOKENS_BUCKETS, total)] += 1
        self.iteration_tokens_sum += total

    def snapshot(self, running: int, waiting: int, kv_cache_usage: float) -> EngineStats:
        """The wire form."""
        return EngineStats(
            num_requests_running=running,
            num_requests_waiting=waiting,
            kv_cache_usage=kv_cache_usage,
            num_steps=self.num_steps,
            num_preemptions=self.num_preemptions,
            prompt_tokens=self.prompt_tokens,
            prompt_tokens_cached=self.prompt_tokens_cached,
            generation_tokens=self.generation_tokens,
            prefix_cache_queries=self.prefix_cache_queries,
            prefix_cache_hits=self.prefix_cache_hits,
            num_partial_prefills=self.num_partial_prefills,
            jump_forward_tokens=self.jump_forward_tokens,
            iteration_tokens=list(self.iteration_tokens),
            iteration_tokens_sum=self.iteration_tokens_sum,
            admission_rejections=self.admission_rejections,
            sleep_level=self.sleep_level,
            corrupted_requests=self.corrupted_requests,
            finished={str(reason): count for reason, count in self.finished.items()},
        )
