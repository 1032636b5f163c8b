"""transformers' generate(), from the same venv as ortloom's exporter."""

import sys

from benchmarks.versus.engines import Engine, Precision, worker
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.setup.files import checkpoint

DTYPES: dict[Precision, str] = {"bf16": "bfloat16", "fp32": "float32"}


def prepare(model: Model, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """The engines; nothing is installed."""
    folder = checkpoint(model)
    return [
        Engine(
            "transformers",
            precision,
            precision,
            worker(sys.executable, "transformers_worker", folder, DTYPES[precision], threads),
            note="static batch",
            memory=expected_bytes(folder),
        )
        for precision in precisions
        if precision in DTYPES
    ]


def reference(model: Model, threads: int) -> Engine:
    """What agreement is measured against: fp32."""
    return prepare(model, ("fp32",), threads)[0]
