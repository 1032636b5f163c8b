"""`--check`: a finished bundle against transformers, before it appears."""

import json
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
from ortloom.exporter.verify.reference import reference_logits
from ortloom.exporter.verify.session import GraphRunner, Logits, narrowed
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


def _stack(found: dict[tuple[int, int], Logits], sequence: int) -> Logits:
    rows = [found[sequence, p] for p in range(schedule.LENGTHS[sequence])]
    return np.stack(rows)


def _both(found: dict[tuple[int, int], Logits]) -> Logits:
    return np.concatenate([_stack(found, 0), _stack(found, 1)])


def limits(manifest: Manifest) -> tuple[float, float] | None:
    """(Least mean cosine, largest mean KL) of a bundle's graphs; None = `FP32_TOLERANCE`."""
    quantization = manifest.quantization
    if quantization.method == "source":  # the source's own values: only rounded inputs differ
        return None if quantization.bits is None else KEPT_LIMITS
    if quantization.bits is not None:
        return ROUNDED_LIMITS[quantization.bits]
    return None if manifest.dtypes.weights == "float32" else ROUNDED_LIMITS[16]


def _judge(figures: Figures, allowed: tuple[float, float] | None, what: str) -> None:
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


def _check_variant(
    root: Path, graph: Graph, data: bytes, manifest: Manifest, tokens: list[list[int]],
    wanted: Logits,
) -> tuple[dict[str, Any], Logits]:  # fmt: skip
    """The report's entry of a variant, and the logits of its schedule."""
    allowed, exact_inputs = limits(manifest), manifest.quantization.bits is None
    runner = _runner(root, graph, data, manifest)
    got = _both(runner.run(schedule.steps(tokens)))
    figures = compare(got, wanted)
    _judge(figures, allowed, f"graph '{graph.variant}' against transformers")
    again = compare(got, _both(runner.run(schedule.one_shot(tokens))))
    # A body's last-digit differences flip int8 roundings of activations, so quantised graphs are
    # only held to the digit where the library, which is batch invariant, computes the attention.
    exact = exact_inputs or runner.native
    if not (again.relative <= FP32_TOLERANCE if exact else again.cosine >= KEPT_LIMITS[0]):
        raise ParityFailed(
            f"graph '{graph.variant}': scheduled and one-shot logits differ by {again.max_abs:.3g}"
        )
    return {
        "attention": "op library" if runner.native else "function body",
        "against_transformers": figures.rounded(),
        "scheduled_against_one_shot_max_abs": float(f"{again.max_abs:.6g}"),
    }, got


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
    progress.phase("reference")
    wanted = np.concatenate(reference_logits(_source_path(options), tokens, changes))
    progress.phase("check")
    figures: dict[str, Any] = {}
    for target in manifest.targets:
        graph, data = _read(root, manifest, manifest.graph(target), layers)
        figures[target], exact = _check_variant(root, graph, data, manifest, tokens, wanted)
        for kind in manifest.kv_cache_dtypes(target):
            if kind != graph.kv_cache_dtype:
                smaller, data = _read(root, manifest, manifest.graph(target, kind), layers)
                found = _check_kv_cache(root, smaller, data, manifest, tokens, exact)
                figures[target].setdefault("kv_cache_against_float32", {})[kind] = found
    return {
        "parity": {
            "reference": "transformers eager fp32",
            "layers": layers,
            "tokens": list(schedule.LENGTHS),
            "window": changes.get("sliding_window"),
            "tolerance": FP32_TOLERANCE if limits(manifest) is None else None,
            "targets": figures,
        }
    }


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
