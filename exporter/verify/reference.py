"""transformers' own logits, eager and in fp32; run as a module.

It is a process of its own because an export patches transformers' attention registry, and because
the source must be read by transformers' loaders, not by ours. A pass computes with the source's
weights or with those that the bundle stores, and with the experts that its own routers choose or
with those that a graph chose (see `routing`).
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ortloom.errors import ParityFailed
from ortloom.exporter.sources.expert_tensors import ExpertsView
from ortloom.exporter.sources.open_source import open_source
from ortloom.exporter.verify.routing import Choices, Verdict, verdict
from ortloom.exporter.weights import row_chunks

Logits = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Pass:
    """One computation of the reference.

    Attributes:
        stored: with the bundle's weights instead of the source's.
        choices: the experts to run; None = those that the routers choose.
    """

    stored: bool = False
    choices: Choices | None = None


@dataclass(frozen=True)
class Answer:
    """Logits [length of both sequences, V] of a pass; what its routers think of given choices."""

    logits: Logits
    routing: Verdict | None


def reference_answers(
    source: Path,
    tokens: list[list[int]],
    config: dict[str, Any],
    passes: Sequence[Pass],
    bundle: Path,
    threads: int = 2,
) -> list[Answer]:
    """The answer of each pass, computed in a fresh process.

    Args:
        source: Hugging Face folder or .gguf file.
        tokens: ids of each sequence.
        config: values that replace those of the source's config (layers, window, ties).
        passes: what to compute.
        bundle: the folder whose weights `Pass.stored` means.
        threads: of torch.

    Raises:
        ParityFailed: the reference could not be computed.
    """
    with tempfile.TemporaryDirectory() as folder:
        job, given = Path(folder) / "job.json", Path(folder) / "choices.npz"
        result = Path(folder) / "answers.npz"
        ids: dict[str, Any] = {
            f"{number}.{layer}.{sequence}": array
            for number, one in enumerate(passes)
            for layer, sequences in (one.choices or {}).items()
            for sequence, array in enumerate(sequences)
        }
        np.savez(given, **ids)
        job.write_text(
            json.dumps(
                {
                    "source": str(source.resolve()),
                    "bundle": str(bundle.resolve()),
                    "tokens": tokens,
                    "config": config,
                    "threads": threads,
                    "passes": [[one.stored, one.choices is not None] for one in passes],
                    "choices": str(given),
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
            return [
                Answer(
                    arrays[f"logits{number}"],
                    Verdict(*map(float, arrays[f"routing{number}"])) if one.choices else None,
                )
                for number, one in enumerate(passes)
            ]


def load_model(source: Path, changes: dict[str, Any]) -> Any:
    """The source's model as transformers loads it, eager and in fp32.

    transformers has no reader for the experts of most GGUF files: their models are built from the
    config and filled with the values that our reader gives.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if source.is_file():
        checkpoint = open_source(str(source))
        if isinstance(checkpoint, ExpertsView):
            return _filled_model(checkpoint, changes)
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


def _filled_model(checkpoint: ExpertsView, changes: dict[str, Any]) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    facts = {**checkpoint.config(), **changes}
    config = AutoConfig.for_model(**{k: v for k, v in facts.items() if k != "dtype"})
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for start, stop in row_chunks(tuple(parameter.shape)):
                rows = checkpoint.rows(name, start, stop)
                parameter[start:stop].copy_(torch.from_numpy(np.array(rows)))
    return model.eval()


def model_logits(model: Any, tokens: list[list[int]]) -> list[Logits]:
    """Logits [length, V] of each sequence by a full forward pass without a cache."""
    import torch

    with torch.no_grad():
        return [model(torch.tensor([ids]), use_cache=False).logits[0].numpy() for ids in tokens]


def take_stored_weights(model: Any, bundle: Path) -> None:
    """Give a model the values that the bundle stores, in place.

    Raises:
        ParityFailed: the bundle lacks a parameter of the model.
    """
    import torch

    from ortloom.exporter.verify.stored_weights import StoredWeights

    stored = StoredWeights(bundle)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = stored.values(name, tuple(parameter.shape))
            parameter.copy_(
                torch.from_numpy(np.array(values))
            )  # not of the map, which is read-only


def routed_logits(model: Any, tokens: list[list[int]], choices: Choices) -> tuple[Logits, Verdict]:
    """Logits [length of both, V] with the experts of `choices`, and what the routers think of them.

    A router keeps its own weights for the experts: softmax of its logits, divided by the sum of the
    chosen ones where the model says so.
    """
    import torch

    seen: dict[int, list[Any]] = {layer: [] for layer in choices}

    def replaced(layer: int) -> Any:
        def hook(router: Any, inputs: Any, output: Any) -> Any:
            logits, sequence = output[0], len(seen[layer])
            seen[layer].append(logits.numpy())
            ids = torch.from_numpy(choices[layer][sequence])
            weights = torch.softmax(logits.float(), dim=-1).gather(1, ids)
            if getattr(router, "norm_topk_prob", True):
                weights = weights / weights.sum(dim=-1, keepdim=True)
            return logits, weights, ids

        return hook

    hooks = [
        model.model.layers[layer].mlp.gate.register_forward_hook(replaced(layer))
        for layer in choices
    ]
    found = model_logits(model, tokens)
    for hook in hooks:
        hook.remove()
    return np.concatenate(found), verdict(seen, choices)


def main(path: str) -> None:
    """Compute what the job file asks for."""
    import torch

    job = json.loads(Path(path).read_text(encoding="utf-8"))
    torch.set_num_threads(int(job["threads"]))
    model = load_model(Path(job["source"]), job["config"])
    named: dict[str, Any] = {}
    with np.load(job["choices"]) as given:
        # The source's weights are gone once the bundle's are taken.
        for number, (stored, routed) in sorted(enumerate(job["passes"]), key=lambda p: p[1][0]):
            if stored:
                take_stored_weights(model, Path(job["bundle"]))
            if not routed:
                named[f"logits{number}"] = np.concatenate(model_logits(model, job["tokens"]))
                continue
            choices: Choices = {}
            for name in given.files:
                of, layer, sequence = map(int, name.split("."))
                if of == number:
                    choices.setdefault(layer, []).insert(sequence, given[name])
            logits, found = routed_logits(model, job["tokens"], choices)
            named[f"logits{number}"] = logits
            named[f"routing{number}"] = np.array([found.gap, found.moved])
    np.savez(job["result"], **named)


if __name__ == "__main__":
    main(sys.argv[1])
