"""Checkpoints that store every expert's matrices apart, seen as transformers' models hold them.

A layer's experts are two parameters in transformers: `mlp.experts.gate_up_proj` [E, 2I, K], the
rows of the gate before those of the up projection, and `mlp.experts.down_proj` [E, K, I]. Published
checkpoints store `mlp.experts.<e>.gate_proj.weight` and so on, or, for Mixtral,
`block_sparse_moe.experts.<e>.w1.weight` (gate), `w3` (up) and `w2` (down).
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ortloom.errors import SourceInvalid
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.sources.checkpoint import Blocks, Checkpoint, FloatRows, TensorInfo

_PART = re.compile(
    r"(.*\.)(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w[123])\.weight"
)
_ROLES = {
    "gate_proj": ("gate_up_proj", 0),
    "w1": ("gate_up_proj", 0),
    "up_proj": ("gate_up_proj", 1),
    "w3": ("gate_up_proj", 1),
    "down_proj": ("down_proj", 0),
    "w2": ("down_proj", 0),
}
"""Name of a stored matrix → the parameter it is part of, and its place in an expert's rows."""

_COUNTS = {"gate_up_proj": 2, "down_proj": 1}
"""Stored matrices of one expert."""


@dataclass(frozen=True)
class _Experts:
    """A fused parameter: for each expert the stored matrices whose rows are its own."""

    parts: tuple[tuple[str, ...], ...]
    shape: tuple[int, int]  # of each part


def _fused(tensors: dict[str, TensorInfo]) -> dict[str, _Experts]:
    found: dict[str, dict[tuple[int, int], str]] = {}
    for name in tensors:
        match = _PART.fullmatch(name)
        if match is not None:
            role, place = _ROLES[match[3]]
            parts = found.setdefault(f"{match[1]}mlp.experts.{role}", {})
            if (int(match[2]), place) in parts:
                raise SourceInvalid(f"tensor '{name}' is also stored under another name")
            parts[int(match[2]), place] = name
    fused = {}
    for parameter, parts in found.items():
        count, places = 1 + max(e for e, _ in parts), _COUNTS[parameter.rpartition(".")[2]]
        wanted = [(e, place) for e in range(count) for place in range(places)]
        missing = next((key for key in wanted if key not in parts), None)
        if missing is not None:
            raise SourceInvalid(f"expert {missing[0]} of '{parameter}' lacks a matrix")
        shapes = {tensors[name].shape for name in parts.values()}
        if len(shapes) > 1 or len(shape := shapes.pop()) != 2:
            raise SourceInvalid(f"the matrices of '{parameter}' differ in shape")
        rows = [tuple(parts[e, place] for place in range(places)) for e in range(count)]
        fused[parameter] = _Experts(tuple(rows), (shape[0], shape[1]))
    return fused


class ExpertsView:
    """See `Checkpoint`: another one, with the parameters of fused experts in place of its parts.

    Raises:
        SourceInvalid: an expert lacks a matrix, or matrices of a parameter differ in shape.
    """

    format: Literal["safetensors", "gguf", "dummy"]

    def __init__(self, stored: Checkpoint) -> None:
        self._stored = stored
        self.name, self.format, self.quantised = stored.name, stored.format, stored.quantised
        self.warnings = stored.warnings
        self._fused = _fused(stored.tensors)
        hidden = {name for e in self._fused.values() for parts in e.parts for name in parts}
        self._names = {
            name.replace(".block_sparse_moe.", ".mlp."): name
            for name in stored.tensors
            if name not in hidden
        }
        self.tensors = {name: stored.tensors[own] for name, own in self._names.items()}
        for parameter, experts in self._fused.items():
            kinds = {stored.tensors[name].dtype for parts in experts.parts for name in parts}
            rows = experts.shape[0] * len(experts.parts[0])
            shape = (len(experts.parts), rows, experts.shape[1])
            self.tensors[parameter] = TensorInfo(shape, "/".join(sorted(kinds)))

    def config(self) -> dict[str, Any]:
        """See `Checkpoint.config`."""
        return self._stored.config()

    def expert_rows(self, name: str, expert: int, start: int, stop: int) -> FloatRows:
        """Rows start .. stop of one expert's matrix [N, K].

        Raises:
            SourceInvalid: the stored bytes cannot be read.
        """
        if name not in self._fused:
            return self.rows(name, expert, expert + 1)[0, start:stop]
        found = [self._stored.rows(*span) for span in self._spans(name, expert, start, stop)]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def expert_blocks(self, name: str, expert: int, start: int, stop: int) -> Blocks:
        """Rows start .. stop of one expert's matrix, whose `block_form` is quantised.

        Raises:
            SourceInvalid: the stored bytes cannot be read, or are not in blocks.
        """
        if name not in self._fused:
            raise SourceInvalid(f"experts '{name}' are not stored in blocks, one by one")
        found = [
            self._stored.block_rows(part, first, last)
            for part, first, last in self._spans(name, expert, start, stop)
        ]
        mins = [blocks.mins for blocks in found if blocks.mins is not None]
        return Blocks(
            np.concatenate([blocks.codes for blocks in found]),
            np.concatenate([blocks.scales for blocks in found]),
            np.concatenate(mins) if mins else None,
        )

    def _spans(self, name: str, expert: int, start: int, stop: int) -> list[tuple[str, int, int]]:
        """The stored matrices behind rows start .. stop of an expert, and the rows in each."""
        experts = self._fused[name]
        step, found = experts.shape[0], []
        for place, part in enumerate(experts.parts[expert]):
            first, last = max(start - place * step, 0), min(stop - place * step, step)
            if first < last:
                found.append((part, first, last))
        return found

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`; whole experts of a fused parameter."""
        if name not in self._fused:
            return self._stored.rows(self._names[name], start, stop)
        rows = self.tensors[name].shape[1]
        return np.stack([self.expert_rows(name, e, 0, rows) for e in range(start, stop)])

    def block_form(self, name: str) -> PackedForm | None:
        """See `Checkpoint.block_form`; None where the experts' own forms differ."""
        if name not in self._fused:
            return self._stored.block_form(self._names[name])
        parts = (part for expert in self._fused[name].parts for part in expert)
        forms = {self._stored.block_form(part) for part in parts}
        return forms.pop() if len(forms) == 1 else None

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`; of experts see `expert_blocks`."""
        if name in self._fused:
            raise SourceInvalid(f"'{name}' is stored expert by expert")
        return self._stored.block_rows(self._names[name], start, stop)

    def files(self) -> list[Path]:
        """See `Checkpoint.files`."""
        return self._stored.files()

    def tokenizer_files(self, folder: Path) -> None:
        """See `Checkpoint.tokenizer_files`."""
        self._stored.tokenizer_files(folder)


def with_experts(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint, seen through an `ExpertsView` where it stores experts apart.

    Raises:
        SourceInvalid: see `ExpertsView`.
    """
    if any(_PART.fullmatch(name) for name in checkpoint.tensors):
        return ExpertsView(checkpoint)
    return checkpoint


def expert_rows(checkpoint: Checkpoint, name: str, expert: int, start: int, stop: int) -> FloatRows:
    """Rows start .. stop of the matrix of one expert of a parameter [E, N, K].

    Raises:
        SourceInvalid: the stored bytes cannot be read.
    """
    if isinstance(checkpoint, ExpertsView):
        return checkpoint.expert_rows(name, expert, start, stop)
    return checkpoint.rows(name, expert, expert + 1)[0, start:stop]


def expert_blocks(checkpoint: Checkpoint, name: str, expert: int, start: int, stop: int) -> Blocks:
    """The same rows in the source's own blocks.

    Raises:
        SourceInvalid: they are not stored so, expert by expert.
    """
    if not isinstance(checkpoint, ExpertsView):
        raise SourceInvalid(f"experts '{name}' are not stored in blocks, one by one")
    return checkpoint.expert_blocks(name, expert, start, stop)
