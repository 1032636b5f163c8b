"""A model's own files: the checkpoint and the GGUF file that engines are set up from."""

import sys
from pathlib import Path

from benchmarks.versus.engines import PEERS, ROOT
from benchmarks.versus.models import Model, find
from benchmarks.versus.setup.steps import command, made, say


def checkpoint(model: Model) -> Path:
    """The model as a plain Hugging Face folder, made where it is missing.

    fp32 of the demo model, for peers that read no GGUF; bf16 of the synthetic one, as Llama 3.2 is
    published.
    """
    folder = model.checkpoint
    if (folder / "config.json").exists():
        return folder
    if model.trained:
        say(f"writing {folder} (0.5 GB) from {model.gguf.name}")
        converter = ROOT / "benchmarks" / "peers" / "hf_checkpoint.py"
        with made(folder) as partial:
            command([sys.executable, converter, model.gguf, partial], PEERS / "hf-fp32.log")
        return folder
    tokenizer = checkpoint(find("demo", model.origin))
    say(f"drawing {folder} (2.5 GB)")
    script = "benchmarks.versus.setup.synthetic"
    with made(folder) as partial:
        command([sys.executable, "-m", script, tokenizer, partial], _log(model))
    return folder


def gguf(model: Model) -> Path:
    """The model as the GGUF file that others are requantised from, made where it is missing."""
    if not model.gguf.exists():
        source = checkpoint(model)
        say(f"writing {model.gguf} (2.5 GB)")
        script = "benchmarks.versus.setup.gguf_file"
        with made(model.gguf) as partial:
            command([sys.executable, "-m", script, source, model.origin, partial], _log(model))
    return model.gguf


def _log(model: Model) -> Path:
    return PEERS / model.name / "files.log"
