"""transformers' own logits, eager and in fp32, from the source itself; run as a module.

It is a process of its own because an export patches transformers' attention registry, and because
the source must be read by transformers' loaders, not by ours.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortloom.errors import ParityFailed


def reference_logits(
    source: Path, tokens: list[list[int]], config: dict[str, Any], threads: int = 2
) -> list[npt.NDArray[np.float32]]:
    """Logits [length, V] of each sequence, computed in a fresh process.

    Args:
        source: Hugging Face folder or .gguf file.
        tokens: ids of each sequence.
        config: values that replace those of the source's config (layers, window, ties).
        threads: of torch.

    Raises:
        ParityFailed: the reference could not be computed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, result = Path(folder) / "job.json", Path(folder) / "logits.npz"
        job.write_text(
            json.dumps(
                {
                    "source": str(source.resolve()),
                    "tokens": tokens,
                    "config": config,
                    "threads": threads,
                    "result": str(result),
                }
            ),
            encoding="utf-8",
        )
        environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_VERBOSITY": "error",
            "TQDM_DISABLE": "1",
        }
        command = [sys.executable, "-W", "ignore", "-m", "ortloom.exporter.verify.reference"]
        done = subprocess.run(
            [*command, str(job)], env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise ParityFailed(
                f"transformers could not compute the reference (exit code {done.returncode}): "
                f"{lines[-1] if lines else 'no message'}"
            )
        with np.load(result) as arrays:
            return [arrays[f"sequence{i}"] for i in range(len(tokens))]


def load_model(source: Path, changes: dict[str, Any]) -> Any:
    """The source's model as transformers loads it, eager and in fp32."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    place: dict[str, Any] = {"pretrained_model_name_or_path": str(source)}
    if source.is_file():
        place = {
            "pretrained_model_name_or_path": str(source.parent),
            "gguf_file": source.name,
        }
    config = AutoConfig.from_pretrained(**place)
    for key, value in changes.items():
        setattr(config, key, value)
    return AutoModelForCausalLM.from_pretrained(
        **place, config=config, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def model_logits(model: Any, tokens: list[list[int]]) -> list[npt.NDArray[np.float32]]:
    """Logits [length, V] of each sequence by a full forward pass without a cache."""
    import torch

    with torch.no_grad():
        return [model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in tokens]


def main(path: str) -> None:
    """Compute what the job file asks for."""
    import torch

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.set_num_threads(int(job["threads"]))
    model = load_model(Path(job["source"]), job["config"])
    logits = model_logits(model, job["tokens"])
    named: dict[str, Any] = {f"sequence{i}": array for i, array in enumerate(logits)}
    np.savez(job["result"], **named)


if __name__ == "__main__":
    main(sys.argv[1])
