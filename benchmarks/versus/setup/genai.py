"""onnxruntime-genai: a venv, and one model a precision made by its own builder."""

import json
from pathlib import Path

from benchmarks.peers.genai_setup import PACKAGES
from benchmarks.versus.engines import PEERS, Engine, Precision, worker
from benchmarks.versus.memory_plan import expected_bytes
from benchmarks.versus.models import Model
from benchmarks.versus.setup.files import checkpoint
from benchmarks.versus.setup.steps import command, made, make_venv, say

HOME = PEERS / "genai"
BUILT: tuple[Precision, ...] = ("int4", "int8", "fp32")
"""What its builder makes for the CPU; bf16 and fp16 it refuses there."""


def prepare(model: Model, precisions: tuple[Precision, ...], threads: int) -> list[Engine]:
    """Builds what is missing and returns the engines."""
    python = make_venv(HOME, PACKAGES, "1.3 GB")
    engines = []
    for precision in precisions:
        if precision not in BUILT:
            continue
        fast = _built(python, model, precision, threads, pruned=True)
        score: tuple[str, ...] = ()
        if model.trained:
            whole = _built(python, model, precision, threads, pruned=False)
            score = worker(python, "genai_worker", whole)
        engines.append(
            Engine(
                "genai",
                precision,
                precision,
                worker(python, "genai_worker", fast),
                note="static batch; head of last tokens only",
                score_command=score,
                memory=expected_bytes(fast),
            )
        )
    return engines


def _built(python: Path, source: Model, precision: Precision, threads: int, pruned: bool) -> Path:
    """A model folder; unless `pruned` it computes the logits of all prompt tokens."""
    home = source.place("genai")
    model = home / (f"{precision}-pruned" if pruned else precision)
    path = model / "genai_config.json"
    if not path.exists():
        say(f"building {model}")
        parts: list[object] = [python, "-m", "onnxruntime_genai.models.builder"]
        parts += ["-i", checkpoint(source).resolve()]
        parts += ["-p", precision, "-e", "cpu", "-c", HOME / "cache"]
        if pruned:
            parts += ["--extra_options", "prune_lm_head=true"]
        with made(model) as partial:
            command([*parts, "-o", partial.resolve()], home / "builder.log", HOME)
    # as built it uses one core
    config = json.loads(path.read_text())
    options = config["model"]["decoder"]["session_options"]
    if options.get("intra_op_num_threads") != threads:
        options["intra_op_num_threads"] = threads
        path.write_text(json.dumps(config, indent=2))
    return model
