"""OpenVINO GenAI: a venv, and one exported IR a weight format."""

import os
from pathlib import Path

from benchmarks.versus.engines import PEERS, Engine, Precision, worker
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.setup.files import checkpoint
from benchmarks.versus.setup.steps import command, made, make_venv, say

HOME = PEERS / "openvino"
PACKAGES = (
    "torch==2.13.0",
    "openvino==2026.4.1",
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "nncf==3.4.0",
    "optimum-intel==2.2.0",
)
NOT_FOR_THIS_TORCH = ("torchvision",)
"""Comes along, does not fit a CPU build of torch and breaks the import of transformers' models."""
INT4 = ("--group-size", "64", "--ratio", "1.0")


def prepare(model: Model, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """Exports what is missing and returns the engines.

    Where the CPU has bf16 the plugin computes in it whatever the IR holds, elsewhere in fp32; what
    it chose stands in the worker's version. So the fp32 and fp16 IRs with its own choice stand
    under bf16, and under fp32 one that is held to fp32.
    """
    python = make_venv(HOME, PACKAGES, "1.6 GB", NOT_FOR_THIS_TORCH)
    rows: list[tuple[Precision, str, str, tuple[str, ...]]] = [
        ("int4", "int4", "int4 asym g64", ()),
        ("int8", "int8", "int8 asym", ()),
        ("bf16", "fp32", "fp32 IR", ()),
        ("bf16", "fp16", "fp16 IR", ()),
        ("fp32", "fp32", "fp32 IR f32", ("INFERENCE_PRECISION_HINT=f32",)),
    ]
    engines = []
    for precision, weights, label, properties in rows:
        if precision in precisions:
            folder = _exported(python, model, weights)
            arguments = (folder, f"INFERENCE_NUM_THREADS={threads}", *properties)
            command_line = worker(python, "openvino_worker", *arguments)
            memory = expected_bytes(folder)
            engines.append(Engine("openvino", precision, label, command_line, memory=memory))
    return engines


def _exported(python: Path, source: Model, weights: str) -> Path:
    home = source.place("openvino")
    model = home / f"ir-{weights}"
    if not (model / "openvino_model.bin").exists():
        say(f"exporting {model}")
        tool = python.with_name("optimum-cli")
        parts: list[object] = [
            tool,
            "export",
            "openvino",
            "-m",
            checkpoint(source).resolve(),
            "--task",
        ]
        parts += ["text-generation-with-past", "--weight-format", weights]
        parts += INT4 if weights == "int4" else ()
        quiet = {**os.environ, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1"}
        with made(model) as partial:
            command([*parts, partial], home / "export.log", environment=quiet)
    return model
