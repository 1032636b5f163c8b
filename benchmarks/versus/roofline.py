"""What the machine can do, and what that allows each case: the line above all speeds.

Rates are measured by loops that do nothing else (benchmarks/machine_peak.cc, bf16_peak.cc), so a
bound is one that no kernel can pass, not one that a kernel is known to reach.
"""

import ctypes
import json
import math
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.versus.cases import Case
from benchmarks.versus.engines import Precision

READ_REPEATS, PEAK_REPEATS, BF16_REPEATS = 240, 300, 5


@dataclass(frozen=True)
class Machine:
    """Bytes read and operations (a multiplication and an addition are two) a second.

    0 stands for a unit that the CPU does not have, or whose rate could not be measured; it is never
    a peak. Memory and fp32 arithmetic every CPU has.

    Raises:
        ValueError: the rate of memory or of fp32 arithmetic is no positive number.
    """

    threads: int
    read: float
    fp32: float
    int8: float
    bf16: float
    int4: float = 0.0

    def __post_init__(self) -> None:
        for name in ("read", "fp32"):
            rate = getattr(self, name)
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"the measured rate of {name} is {rate}")
        for name in ("int4", "int8", "bf16"):
            rate = getattr(self, name)
            if not (math.isfinite(rate) and rate > 0):
                object.__setattr__(self, name, 0.0)

    @classmethod
    def measure(cls, threads: int) -> "Machine":
        """Builds the loops with the machine's own instructions and runs them."""
        here = Path(__file__).parent
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "peaks.so"
            compiler = os.environ.get("CXX", "g++")
            flags = ["-O3", "-march=native", "-std=c++17", "-shared", "-fPIC", "-pthread"]
            sources = [str(here.parent / "machine_peak.cc"), str(here / "bf16_peak.cc")]
            subprocess.run([compiler, *flags, *sources, "-o", str(library)], check=True)
            calls = ctypes.CDLL(str(library))
            for name in (
                "read_rate",
                "float_rate",
                "int8_rate",
                "bf16_rate",
                "int4_rate",
            ):
                getattr(calls, name).restype = ctypes.c_double
            return cls(
                threads,
                calls.read_rate(threads, READ_REPEATS),
                calls.float_rate(threads, PEAK_REPEATS),
                calls.int8_rate(threads, PEAK_REPEATS),
                calls.bf16_rate(threads, BF16_REPEATS),
                calls.int4_rate(threads, PEAK_REPEATS),
            )

    def best_with(self, other: "Machine") -> "Machine":
        """The better of two measurements of each rate."""
        return Machine(
            self.threads,
            max(self.read, other.read),
            max(self.fp32, other.fp32),
            max(self.int8, other.int8),
            max(self.bf16, other.bf16),
            max(self.int4, other.int4),
        )

    def peak(self, precision: Precision) -> float:
        """Of the fastest unit that a precision's matrix products can use.

        All can be computed in fp32, and integers in bf16 as well; so a unit that is missing, or
        slower than those, is passed over.
        """
        usable = {
            "int4": (self.int4, self.int8, self.bf16, self.fp32),
            "int8": (self.int8, self.bf16, self.fp32),
            "bf16": (self.bf16, self.fp32),
            "fp32": (self.fp32,),
        }
        return max(usable[precision])

    def __str__(self) -> str:

        def shown(rate: float, unit: str) -> str:
            return f"{rate / 1e9:.0f} {unit}" if rate else "no unit"

        return (
            f"{self.threads} threads: read {self.read / 1e9:.1f} GB/s, fp32 "
            f"{self.fp32 / 1e9:.0f} GFLOP/s, bf16 {shown(self.bf16, 'GFLOP/s')}, "
            f"int8 {shown(self.int8, 'GOP/s')}, int4 {shown(self.int4, 'GOP/s')}"
        )


@dataclass(frozen=True)
class Shape:
    """Sizes of a Llama model."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int

    @classmethod
    def load(cls, checkpoint: Path) -> "Shape":
        """From a checkpoint's config.json."""
        config = json.loads((checkpoint / "config.json").read_text())
        heads = config["num_attention_heads"]
        return cls(
            config["num_hidden_layers"],
            config["hidden_size"],
            heads,
            config["num_key_value_heads"],
            config.get("head_dim") or config["hidden_size"] // heads,
            config["intermediate_size"],
            config["vocab_size"],
        )

    @property
    def body(self) -> int:
        """Weights of all layers' matrices."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.ffn)

    @property
    def head(self) -> int:
        """Weights of the output head."""
        return self.hidden * self.vocabulary

    def attention_operations(self, tokens: int) -> float:
        """Of the causal half, for a prompt."""
        return 2.0 * tokens * tokens * self.heads * self.head_dim * self.layers

    def kv_elements(self, tokens: int) -> int:
        """Of a context's keys and values; its bytes in the smallest elements that are stored."""
        return 2 * tokens * self.layers * self.kv_heads * self.head_dim


def bound(machine: Machine, shape: Shape, case: Case, precision: Precision, weights: int) -> float:
    """Tokens a second that nothing on this machine can pass in a case.

    Args:
        machine: its rates.
        shape: the model.
        case: decode1, batch8, batch32, prefill128 or prefill1024.
        precision: chooses the unit of the matrix products; attention is counted on the fastest of
            the bf16 and fp32 units, in fp32 on the fp32 one.
        weights: bytes of the weights that a step reads.

    Returns:
        A positive, finite number.
    """
    peak = machine.peak(precision)
    floating = machine.fp32 if precision == "fp32" else max(machine.bf16, machine.fp32)
    linear = 2.0 * shape.body * case.prompt + 2.0 * shape.head
    prefill = linear / peak + shape.attention_operations(case.prompt) / floating
    prefill = case.streams * prefill
    prefill = max(prefill, weights / machine.read)
    if case.name.startswith("prefill"):
        return case.prompt / prefill
    context = shape.kv_elements(case.prompt + case.new // 2) * case.streams
    operations = 2.0 * (shape.body + shape.head) * case.streams
    step = max((weights + context) / machine.read, operations / peak)
    if case.name == "decode1":
        return 1.0 / step
    return case.streams * case.new / (prefill + (case.new - 1) * step)
