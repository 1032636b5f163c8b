"""transformers' generate(), from the same venv as ortloom's exporter."""

import sys
from pathlib import Path

from benchmarks.versus.engines import Engine, Precision, worker
from benchmarks.versus.setup.steps import checkpoint

DTYPES: dict[Precision, str] = {"bf16": "bfloat16", "fp32": "float32"}


def prepare(gguf: Path, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """The engines; nothing is installed."""
    folder = checkpoint(gguf)
    return [
        Engine(
            "transformers",
            precision,
            precision,
            worker(sys.executable, "transformers_worker", folder, DTYPES[precision], threads),
            note="static batch",
        )
        for precision in precisions
        if precision in DTYPES
    ]


def reference(gguf: Path, threads: int) -> Engine:
    """What agreement is measured against: fp32."""
    return prepare(gguf, ("fp32",), threads)[0]
