"""The continuous-batching schedule of the parity check, as packed step inputs.

Two sequences live in one pool through five graph calls that cover what serving does: two prefills
together, a chunked prefill beside a decode, two decodes in swapped order, one decode alone, two
chunks. Blocks are neither in order nor adjacent, and the pools start full of junk, so a key read
from an unwritten slot shows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK_SIZE = 16

STEPS: tuple[tuple[tuple[int, int], ...], ...] = (
    ((0, 20), (1, 27)),
    ((0, 13), (1, 1)),
    ((1, 1), (0, 1)),
    ((0, 1),),
    ((0, 18), (1, 19)),
)
"""(sequence, tokens) pairs of each call."""

LENGTHS = tuple(sum(n for step in STEPS for s, n in step if s == which) for which in (0, 1))
"""Tokens of each sequence after all calls."""

BLOCKS = ((7, 2, 9, 4), (3, 8, 1, 6))
"""Block table of each sequence; block 0 is the null block, 5 stays unused."""

NUM_BLOCKS = 10

WINDOW = 12
"""Window that a check gives to windowed layers: shorter than a block, so that it bites."""


@dataclass(frozen=True)
class Step:
    """Inputs of one graph call and the (sequence, position) of each packed token."""

    inputs: dict[str, npt.NDArray[np.generic]]
    rows: tuple[tuple[int, int], ...]


def pack(
    parts: Sequence[tuple[int, int]], past: Sequence[int], tokens: Sequence[Sequence[int]]
) -> Step:
    """Step inputs of one call.

    Args:
        parts: (sequence, tokens) pairs.
        past: tokens already in the cache, by sequence.
        tokens: ids of each sequence.
    """
    rows = tuple((s, past[s] + i) for s, n in parts for i in range(n))
    ids = [tokens[s][p] for s, p in rows]
    slots = [BLOCKS[s][p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for s, p in rows]
    starts = np.cumsum([0, *(n for _, n in parts)])
    inputs: dict[str, npt.NDArray[np.generic]] = {
        "input_ids": np.array(ids, dtype=np.int64),
        "positions": np.array([p for _, p in rows], dtype=np.int64),
        "cu_seqlens": starts.astype(np.int32),
        "past_seqlens": np.array([past[s] for s, _ in parts], dtype=np.int32),
        "block_table": np.array([BLOCKS[s] for s, _ in parts], dtype=np.int32),
        "slot_mapping": np.array(slots, dtype=np.int32),
        "logits_indices": np.arange(len(rows), dtype=np.int64),
    }
    return Step(inputs, rows)


def steps(tokens: Sequence[Sequence[int]]) -> Iterator[Step]:
    """The calls of `STEPS`."""
    past = [0, 0]
    for parts in STEPS:
        yield pack(parts, past, tokens)
        for sequence, count in parts:
            past[sequence] += count


def one_shot(tokens: Sequence[Sequence[int]]) -> Iterator[Step]:
    """Both sequences whole, one call each."""
    for sequence in (0, 1):
        yield pack([(sequence, LENGTHS[sequence])], [0, 0], tokens)
