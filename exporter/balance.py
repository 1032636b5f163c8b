"""Evening out what is rounded together: factors move from norms' gains into matrices' columns.

A quantised linear layer rounds its input in groups of neighbouring channels with one scale, so a
channel that is usually large takes accuracy from its neighbours. Dividing a norm's gain by s and
multiplying the columns of the matrices that read it by s leaves the model as it is; with
s = sqrt(size of the channel / size of the columns) channels and columns become equally uneven, as
little as can be. The sizes of channels are estimates (`typical_inputs`), those of columns known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ortloom.exporter.architectures import parameter_shapes
from ortloom.exporter.exact_product import column_squares
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.quantize import BLOCK
from ortloom.exporter.sources.checkpoint import Blocks, Checkpoint, FloatRows
from ortloom.exporter.sources.expert_tensors import expert_blocks, expert_rows
from ortloom.exporter.typical_inputs import typical_inputs
from ortloom.exporter.weights import Array, row_chunks

LIMIT = 64.0
"""Largest factor, and the least is one by it: scales of the columns stay within fp16."""

FLOOR = 2.0**-10
"""Sizes count as at least so much of the largest one: a channel may be zero."""


@dataclass(frozen=True)
class BalancedRows:
    """Reads a source's values, times the factors of the parameters that have some.

    Attributes:
        checkpoint: the source.
        factors: name of a parameter → fp32 [K], of each element of a gain or column of a matrix.
    """

    checkpoint: Checkpoint
    factors: Mapping[str, Array] = field(default_factory=dict)

    def rows(self, name: str, start: int, stop: int) -> FloatRows:
        """See `Checkpoint.rows`."""
        found = self.checkpoint.rows(name, start, stop)
        factor = self.factors.get(name)
        if factor is None:
            return found
        return found * (factor[start:stop] if found.ndim == 1 else factor)

    def expert_rows(self, name: str, expert: int, start: int, stop: int) -> FloatRows:
        """See `expert_tensors.expert_rows`."""
        found = expert_rows(self.checkpoint, name, expert, start, stop)
        factor = self.factors.get(name)
        return found if factor is None else found * factor

    def block_rows(self, name: str, start: int, stop: int) -> Blocks:
        """See `Checkpoint.block_rows`; own blocks have no factors."""
        return self.checkpoint.block_rows(name, start, stop)

    def expert_blocks(self, name: str, expert: int, start: int, stop: int) -> Blocks:
        """See `expert_tensors.expert_blocks`; own blocks have no factors."""
        return expert_blocks(self.checkpoint, name, expert, start, stop)


def balance(
    checkpoint: Checkpoint,
    config: dict[str, Any],
    readers: Mapping[str, tuple[str, ...]],
    forms: Mapping[str, PackedForm],
) -> dict[str, Array]:
    """The factors of `BalancedRows`.

    Args:
        checkpoint: the source.
        config: its Hugging Face config.
        readers: of the norms, see `norm_readers`.
        forms: stored forms by name. Norms that no rounded matrix reads are left alone, and so are
            those with a reader whose values the source has in blocks that 8 bits hold as they are.

    Raises:
        SourceInvalid: the stored bytes cannot be read.
    """
    wanted = {
        gain
        for gain, names in readers.items()
        if any(name in forms and forms[name].quantised for name in names)
        and not any(_keeps_values(checkpoint, name) for name in names)
    }
    if not wanted:
        return {}
    shapes = parameter_shapes(config)
    factors: dict[str, Array] = {}
    for gain, channels in typical_inputs(checkpoint, config):
        if gain not in wanted:
            continue
        columns = np.zeros(len(channels))
        for name in readers[gain]:
            columns += _column_squares(checkpoint, name, shapes[name])
        moved = factors_of(channels, columns)
        if moved is not None:
            factors[gain] = np.float32(1) / moved
            factors.update(dict.fromkeys(readers[gain], moved))
    return factors


def _keeps_values(checkpoint: Checkpoint, name: str) -> bool:
    """Whether blocks of 8 bits hold a matrix's values exactly (Q8_0, Q4_0; see `fit_scales`)."""
    own = checkpoint.block_form(name)
    return own is not None and own.block_size == BLOCK and not own.has_mins


def _column_squares(checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> Array:
    """Sums of squares [K] of the columns of a matrix [N, K] or of experts [E, N, K]."""
    total = np.zeros(shape[-1])
    if len(shape) == 2:
        for start, stop in row_chunks(shape):
            total += column_squares(checkpoint.rows(name, start, stop))
        return total
    for expert in range(shape[0]):
        for start, stop in row_chunks(shape[1:]):
            total += column_squares(expert_rows(checkpoint, name, expert, start, stop))
    return total


def factors_of(channels: Array, columns: Array) -> Array | None:
    """Factors fp32 [K] of columns; None where a size is no number or all are zero.

    Args:
        channels: sizes [K] of the channels that the columns multiply.
        columns: sums of squares [K] of the columns.
    """
    sizes = np.sqrt(columns)
    if not (np.isfinite(channels).all() and np.isfinite(sizes).all()):
        return None
    if not (channels.any() and sizes.any()):
        return None
    channels = np.maximum(channels, channels.max() * FLOOR)
    found = np.sqrt(channels / np.maximum(sizes, sizes.max() * FLOOR))
    # The matrices stay as large as they were, in the sum of their squares.
    grown = np.cumsum(columns * found * found)[-1] / np.cumsum(columns)[-1]
    found = np.clip(found / np.sqrt(grown), 1 / LIMIT, LIMIT)
    moved: Array = found.astype(np.float32)
    return moved
