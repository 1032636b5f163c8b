"""Speed of sampling: the op library beside NumPy, for one step's rows.

    python -m benchmarks.sampler [--vocab 49152 151936] [--rows 1 8 32] [--threads 1] [--cases ...]

Logits are drawn from a normal distribution of the standard deviation that a case names; 3 is wider
than what models give (hundreds to thousands of tokens in the nucleus), "peaked" is what they mostly
give. `python` is what a step of so many rows costs with a vocabulary of 64: all but the
work on logits. All times are the shortest of interleaved calls, which other
load on the machine disturbs least, in microseconds a step.
"""

import argparse
import time

import numpy as np

from ortloom.errors import KernelUnavailable
from ortloom.kernels import isa, team
from ortloom.runtime.request import Request
from ortloom.runtime.sampler import Sampler
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.structured_output import GrammarCompiler

SPIN_MICROSECONDS = 100
WIDE, PEAKED = 3.0, 6.0
CUTS = {"temperature": 0.8, "top_p": 0.95, "top_k": 50}
PENALTIES = {"repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": 0.1}
CASES = {
    "greedy": (WIDE, {"temperature": 0.0}),
    "greedy, logprobs 5": (WIDE, {"temperature": 0.0, "logprobs": 5}),
    "temperature": (WIDE, {"temperature": 0.8}),
    "top_k": (WIDE, {"temperature": 0.8, "top_k": 50}),
    "top_k, top_p": (WIDE, CUTS),
    "top_p, peaked": (PEAKED, {"temperature": 0.8, "top_p": 0.95}),
    "top_p, wide": (WIDE, {"temperature": 1.0, "top_p": 0.95}),
    "min_p": (WIDE, {"temperature": 0.8, "min_p": 0.05}),
    "penalties, top_k, top_p": (WIDE, CUTS | PENALTIES),
    "all, logprobs 20": (WIDE, CUTS | PENALTIES | {"logprobs": 20}),
}


class Case:
    def __init__(self, vocab, rows, deviation, params):
        generator = np.random.default_rng(0)
        self.logits = generator.standard_normal((rows, vocab), dtype=np.float32)
        self.logits *= np.float32(deviation)
        self.work = self.logits.copy()
        made = SamplingParams(**params).validated(vocab, -1)
        prompt = generator.integers(0, vocab, 200).tolist()
        self.requests = [Request(f"r{i}", prompt, made, 4096, seed=i) for i in range(rows)]
        for request in self.requests:
            request.token_ids += generator.integers(0, vocab, 100).tolist()
        self.changes = any(name.endswith("penalty") for name in params)

    def seconds(self, sampler):
        if self.changes:  # the penalties of one call must not pile up on those of the last
            np.copyto(self.work, self.logits)
        start = time.perf_counter()
        sampler.sample(self.work, self.requests)
        return time.perf_counter() - start


def shortest(case, samplers, seconds):
    """Shortest call in microseconds of each sampler."""
    times = [[] for _ in samplers]
    for sampler in samplers:
        case.seconds(sampler)
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for sampler, its in zip(samplers, times, strict=True):
            its.append(case.seconds(sampler))
    return [min(its) * 1e6 for its in times]


def make(vocab, native):
    return Sampler(vocab, "raw_logprobs", GrammarCompiler(None, vocab, []), native)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 151936])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="a line")
    options = parser.parse_args()
    try:
        print(f"tier {isa.isa_report().used}, {options.threads} threads")
    except KernelUnavailable as error:
        raise SystemExit(f"nothing to compare: {error}") from error
    team.configure(options.threads, SPIN_MICROSECONDS)
    print(f"{'case':26}{'V':>8}{'rows':>6}{'numpy':>10}{'library':>10}{'ratio':>8}{'python':>8}")
    for name in options.cases:
        deviation, params = CASES[name]
        for rows in options.rows:
            small = Case(64, rows, deviation, params)
            (python,) = shortest(small, [make(64, True)], 0.2)
            for vocab in options.vocab:
                case = Case(vocab, rows, deviation, params)
                slow, fast = shortest(
                    case, [make(vocab, False), make(vocab, True)], options.seconds
                )
                line = f"{name:26}{vocab:8}{rows:6}{slow:10.0f}{fast:10.0f}{slow / fast:8.1f}"
                print(f"{line}{python:8.0f}", flush=True)


if __name__ == "__main__":
    main()
