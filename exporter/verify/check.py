"""`--check`: a finished bundle against transformers, before it appears.

Two questions are kept apart. Does the graph compute what the model computes: its logits against
those of transformers with the very values that the bundle stores. And what did rounding cost:
against transformers with the source's values, where the bundle's are others. A mixture of experts
is compared with the experts that its graph chose, which are judged apart (see `routing`).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ortloom.errors import ParityFailed
from ortloom.exporter.options import ExportOptions
from ortloom.exporter.progress import Progress
from ortloom.exporter.verify import schedule
from ortloom.exporter.verify.figures import (
    FP32_TOLERANCE,
    KEPT_LIMITS,
    KV_CACHE_COSINE,
    ROUNDED_LIMITS,
    Figures,
    compare,
)
from ortloom.exporter.verify.first_layers import first_layers
from ortloom.exporter.verify.reference import Answer, Pass, reference_answers
from ortloom.exporter.verify.routing import Choices, require_routing
from ortloom.exporter.verify.session import GraphRunner, Logits, narrowed
from ortloom.kernels import isa
from ortloom.models.manifest import Graph, Manifest

TEXT = (
    "The lighthouse keeper counted the ships that passed between midnight and dawn, and wrote each "
    "name into a book that nobody had opened for thirty years. On the last page he found a list of "
    "prime numbers: 2, 3, 5, 7, 11, 13. def area(r): return 3.14159 * r ** 2. Where does the river "
    "end? It ends where the map was torn, somewhere north of the old railway bridge. "
)
"""What the two sequences say; taken from two places, repeated where a tokenizer is terse."""


def check_tokens(root: Path, vocab_size: int) -> list[list[int]]:
    """Ids of the two sequences, from the bundle's own tokenizer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(root / "tokenizer.json"))
    ids = tokenizer.encode(TEXT, add_special_tokens=False).ids
    ids = [i for i in ids if i < vocab_size] or [0]
    while len(ids) < sum(schedule.LENGTHS):
        ids = ids + ids
    first, second = schedule.LENGTHS
    return [ids[:first], ids[first : first + second]]


def _both(found: dict[tuple[int, int], Logits]) -> Logits:
    return np.stack([found[s, p] for s in (0, 1) for p in range(schedule.LENGTHS[s])])


def keeps_values(manifest: Manifest) -> bool:
    """Whether the bundle stores the values of its source."""
    quantization = manifest.quantization
    if quantization.method == "source":
        return True
    return quantization.bits is None and manifest.dtypes.weights == "float32"


def _exact(manifest: Manifest, native: bool) -> bool:
    """Whether a graph's linear layers read fp32 inputs as they are."""
    if manifest.quantization.bits is not None:
        return False
    narrow = any(tensor.dtype == "bfloat16" for file in manifest.weights for tensor in file.tensors)
    return not (native and narrow and isa.isa_report().used == "avx512-bf16")


def _judge(figures: Figures, allowed: tuple[float, float] | None, what: str) -> None:
    """Judge by (least mean cosine, largest mean KL), or by `FP32_TOLERANCE`."""
    if allowed is None:
        if not figures.relative <= FP32_TOLERANCE:
            raise ParityFailed(
                f"{what}: logits differ by {figures.max_abs:.3g} at scale {figures.scale:.3g} "
                f"({figures.relative:.2g} relative, allowed {FP32_TOLERANCE:.0e})"
            )
        return
    cosine, kl = allowed
    if not (figures.cosine >= cosine and figures.kl <= kl):
        raise ParityFailed(
            f"{what}: cosine {figures.cosine:.4f} (at least {cosine}), KL {figures.kl:.3g} (at "
            f"most {kl}) against fp32"
        )


def _runner(root: Path, graph: Graph, data: bytes, manifest: Manifest) -> GraphRunner:
    narrow, library = narrowed(data, schedule.WINDOW), graph.variant != "plain"
    return GraphRunner(narrow, root, graph, manifest.kv_groups, use_library=library)


@dataclass(frozen=True)
class _Run:
    """What a variant's graph gave: logits of the schedule, the experts it chose, and what the
    report says of it so far."""

    variant: str
    native: bool
    exact: bool
    logits: Logits
    choices: Choices | None
    entry: dict[str, Any]


def _run_variant(
    root: Path, graph: Graph, data: bytes, manifest: Manifest, tokens: list[list[int]]
) -> _Run:
    runner = _runner(root, graph, data, manifest)
    got = _both(runner.run(schedule.steps(tokens)))
    choices, exact_inputs = runner.choices or None, manifest.quantization.bits is None
    again = compare(got, _both(runner.run(schedule.one_shot(tokens))))
    # A body's last-digit differences flip int8 roundings of activations, so quantised graphs are
    # only held to the digit where the library, which is batch invariant, computes the attention.
    exact = exact_inputs or runner.native
    if not (again.relative <= FP32_TOLERANCE if exact else again.cosine >= KEPT_LIMITS[0]):
        raise ParityFailed(
            f"graph '{graph.variant}': scheduled and one-shot logits differ by {again.max_abs:.3g}"
        )
    entry = {
        "attention": "op library" if runner.native else "function body",
        "scheduled_against_one_shot_max_abs": float(f"{again.max_abs:.6g}"),
    }
    exact = _exact(manifest, runner.native)
    return _Run(graph.variant, runner.native, exact, got, choices, entry)


def _check_kv_cache(
    root: Path, graph: Graph, data: bytes, manifest: Manifest, tokens: list[list[int]],
    exact: Logits,
) -> dict[str, float]:  # fmt: skip
    """Figures of a graph with a smaller KV cache against its variant's with float32."""
    runner = _runner(root, graph, data, manifest)
    figures = compare(_both(runner.run(schedule.steps(tokens))), exact)
    if not figures.cosine >= KV_CACHE_COSINE:
        raise ParityFailed(
            f"graph '{graph.file.path}': a KV cache of {graph.kv_cache_dtype} gives logits of "
            f"cosine {figures.cosine:.4f} against float32 (at least {KV_CACHE_COSINE})"
        )
    return figures.rounded()


def _passes(run: _Run, kept: bool) -> list[Pass]:
    """What the reference computes for a run: the first with the values that the bundle stores,
    the second with the source's; a third where experts could be others."""
    needed = [Pass(stored=not kept, choices=run.choices)]
    if not kept:
        needed.append(Pass(choices=run.choices))
    return needed if run.choices is None else [*needed, Pass()]


def _compare(run: _Run, answers: list[Answer], manifest: Manifest) -> dict[str, Any]:
    """The report's entry of a run, once it is judged by the answers to its `_passes`."""
    entry, kept = dict(run.entry), keeps_values(manifest)
    own, source = answers[0], answers[0 if kept else 1]
    what = f"graph '{run.variant}' against transformers"
    if own.routing is not None:
        require_routing(own.routing, not run.exact, what)
        entry["routing"] = own.routing.rounded()
        entry["with_its_own_routing"] = compare(run.logits, answers[-1].logits).rounded()
    figures = compare(run.logits, own.logits)
    if not kept:
        entry["against_stored_weights"] = figures.rounded()
        _judge(figures, None if run.exact else KEPT_LIMITS, f"{what} with the stored weights")
        figures = compare(run.logits, source.logits)
        _judge(figures, ROUNDED_LIMITS[manifest.quantization.bits or 16], what)
        if source.routing is not None:
            entry["routing_of_the_source"] = source.routing.rounded()
    else:
        _judge(figures, None if run.exact else KEPT_LIMITS, what)
    entry["against_transformers"] = figures.rounded()
    return entry


def check_bundle(root: Path, options: ExportOptions, progress: Progress) -> dict[str, Any]:
    """Compare every target's graph with transformers.

    Args:
        root: the bundle folder.
        options: of the export (source, layers to check).
        progress: told about the phases.

    Returns:
        The report's `parity` entry.

    Raises:
        ParityFailed: figures outside the tolerance, or no reference.
    """
    manifest = Manifest.load(root)
    config = json.loads((root / "config.json").read_text(encoding="utf-8"))
    layers = manifest.architecture.num_layers
    if options.check_layers is not None:
        layers = max(1, min(layers, options.check_layers))
    tokens = check_tokens(root, manifest.architecture.vocab_size)
    changes: dict[str, Any] = {"tie_word_embeddings": manifest.architecture.tied_embeddings}
    if layers != manifest.architecture.num_layers:
        changes["num_hidden_layers"] = layers
        for key in ("layer_types", "no_rope_layers"):
            if isinstance(config.get(key), list):
                changes[key] = config[key][:layers]
    windows = [g.window for g in manifest.kv_groups if g.window is not None]
    if windows:
        changes["sliding_window"] = min(schedule.WINDOW, *windows)
    progress.phase("check")
    runs = []
    for target in manifest.targets:
        graph, data = _read(root, manifest, manifest.graph(target), layers)
        run = _run_variant(root, graph, data, manifest, tokens)
        for kind in manifest.kv_cache_dtypes(target):
            if kind != graph.kv_cache_dtype:
                smaller, data = _read(root, manifest, manifest.graph(target, kind), layers)
                found = _check_kv_cache(root, smaller, data, manifest, tokens, run.logits)
                run.entry.setdefault("kv_cache_against_float32", {})[kind] = found
        runs.append(run)
    progress.phase("reference")
    kept = keeps_values(manifest)
    needed: list[Pass] = []
    wanted = [[_place(one, needed) for one in _passes(run, kept)] for run in runs]
    answers = reference_answers(_source_path(options), tokens, changes, needed, root)
    figures = {
        run.variant: _compare(run, [answers[n] for n in numbers], manifest)
        for run, numbers in zip(runs, wanted, strict=True)
    }
    exact = kept and manifest.quantization.bits is None
    return {
        "parity": {
            "reference": "transformers eager fp32",
            "layers": layers,
            "tokens": list(schedule.LENGTHS),
            "window": changes.get("sliding_window"),
            "tolerance": FP32_TOLERANCE if exact else None,
            "targets": figures,
        }
    }


def _place(one: Pass, known: list[Pass]) -> int:
    """The number of an equal pass, which is added where there is none."""
    for number, other in enumerate(known):
        if one.stored == other.stored and _same(one.choices, other.choices):
            return number
    known.append(one)
    return len(known) - 1


def _same(one: Choices | None, other: Choices | None) -> bool:
    if one is None or other is None:
        return one is other
    return all(
        np.array_equal(a, b) for layer in one for a, b in zip(one[layer], other[layer], strict=True)
    )


def _read(root: Path, manifest: Manifest, graph: Graph, layers: int) -> tuple[Graph, bytes]:
    data = (root / graph.file.path).read_bytes()
    if layers == manifest.architecture.num_layers:
        return graph, data
    return first_layers(graph, data, layers)


def _source_path(options: ExportOptions) -> Path:
    path = Path(options.source).expanduser()
    if path.is_dir() and not (path / "config.json").exists():
        return next(iter(sorted(path.glob("*.gguf"))), path)
    return path
