"""Latency of one batch in this process: the same prompts again and again."""

import random
import time
from pathlib import Path

import msgspec
import numpy as np

from ortloom.bench.context import check_room, known_context
from ortloom.bench.progress import Progress
from ortloom.config import Config
from ortloom.logs import say
from ortloom.models.manifest import Manifest
from ortloom.runtime.llm import LLM
from ortloom.runtime.sampling_params import SamplingParams

PERCENTILES = (10, 25, 50, 75, 90, 99)


class LatencyPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths in tokens; `n` samples a prompt."""

    input_len: int = 32
    output_len: int = 128
    batch_size: int = 8
    n: int = 1
    num_iters_warmup: int = 10
    num_iters: int = 30
    detokenize: bool = True
    hide_progress: bool = False


class LatencyResult(msgspec.Struct, frozen=True):
    """Seconds from the call to the last token of the batch, one entry a measured iteration."""

    latencies: list[float]

    @property
    def average(self) -> float:
        """Mean."""
        return float(np.mean(self.latencies))

    @property
    def percentiles(self) -> dict[str, float]:
        """Value of each of `PERCENTILES`."""
        return {str(p): float(np.percentile(self.latencies, p)) for p in PERCENTILES}

    def lines(self) -> list[str]:
        """The printed report."""
        rows = [f"Avg latency: {self.average} seconds"]
        shares = self.percentiles.items()
        return rows + [f"{share}% percentile latency: {value} seconds" for share, value in shares]

    def to_json(self) -> dict[str, object]:
        """The JSON result."""
        return {
            "avg_latency": self.average,
            "latencies": self.latencies,
            "percentiles": self.percentiles,
        }


def measure_latency(config: Config, plan: LatencyPlan) -> LatencyResult:
    """Load the bundle, warm up, and time the iterations.

    Raises:
        OrtloomError: the bundle cannot be run, or the lengths do not fit.
    """
    architecture = Manifest.load(Path(config.model.bundle)).architecture
    check_room(known_context(config, architecture), plan.input_len, plan.output_len)
    draw = random.Random(config.model.seed)
    params = SamplingParams(
        n=plan.n,
        temperature=1.0,
        max_tokens=plan.output_len,
        ignore_eos=True,
        detokenize=plan.detokenize,
    )
    with LLM.from_config(config) as llm:
        check_room(llm.max_model_len, plan.input_len, plan.output_len)
        prompts = [
            [draw.randrange(architecture.vocab_size) for _ in range(plan.input_len)]
            for _ in range(plan.batch_size)
        ]

        def once() -> float:
            begin = time.perf_counter()
            llm.generate(prompts, params)
            return time.perf_counter() - begin

        say(f"warming up with {plan.num_iters_warmup} iterations")
        for _ in range(plan.num_iters_warmup):
            once()
        say(f"measuring {plan.num_iters} iterations")
        latencies = []
        with Progress(plan.num_iters, plan.hide_progress) as progress:
            for _ in range(plan.num_iters):
                latencies.append(once())
                progress.step()
    return LatencyResult(latencies)
