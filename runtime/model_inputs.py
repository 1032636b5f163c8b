"""The arrays of one graph call, kept in buffers that live as long as the runner.

T packed tokens, R requests, M blocks a request, N rows of logits:
`input_ids [T] i64 · positions [T] i64 (or [3, T]) · cu_seqlens [R+1] i32 · past_seqlens [R] i32 ·
block_table [R, M] i32 · slot_mapping [T] i32 · logits_indices [N] i64`.
The arrays handed out are C-contiguous views of the builder's buffers, valid until the next build.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.request import Request


@dataclass(slots=True)
class Segment:
    """Tokens start .. start + num_tokens of one request in one graph call.

    Logits are wanted for its last `num_rows` tokens. `index` is the request's place in the step's
    plan; `block_ids` covers start + num_tokens tokens.
    """

    index: int
    request: Request
    start: int
    num_tokens: int
    num_rows: int
    block_ids: list[int]


@dataclass(slots=True)
class ModelInputs:
    """The arrays of one call; shapes in the module's docstring. `generation` changes when the
    buffers themselves were replaced, so bindings to them are void. `num_rows` is the number of
    rows wanted; logits_indices has one entry (row 0) even if that is none."""

    input_ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32]
    past_seqlens: NDArray[np.int32]
    block_table: NDArray[np.int32]
    slot_mapping: NDArray[np.int32]
    logits_indices: NDArray[np.int64]
    num_rows: int
    generation: int

    @property
    def shape_key(self) -> tuple[int, int, int, int, int]:
        """(T, R, M, N, generation): equal keys mean equal addresses and shapes."""
        requests, blocks = self.block_table.shape
        tokens = len(self.input_ids)
        return tokens, requests, blocks, len(self.logits_indices), self.generation


class InputBuilder:
    """Fills the buffers.

    Args:
        block_size: tokens a block.
        positions_rows: 1, or 3 for M-RoPE (all rows equal for text).
    """

    def __init__(self, block_size: int, positions_rows: int = 1) -> None:
        self._block_size = block_size
        self._positions_rows = positions_rows
        self._generation = 0
        self._num_columns = 0
        self._rows: list[tuple[Request, int, int]] = []  # table row -> request, preemptions, length
        self._allocate(tokens=64, requests=16, cells=1024, rows=64)

    def _allocate(self, tokens: int, requests: int, cells: int, rows: int) -> None:
        self._input_ids: NDArray[np.int64] = np.zeros(tokens, np.int64)
        self._positions: NDArray[np.int64] = np.zeros(tokens * self._positions_rows, np.int64)
        self._slots: NDArray[np.int32] = np.zeros(tokens, np.int32)
        self._cu_seqlens: NDArray[np.int32] = np.zeros(requests + 1, np.int32)
        self._past: NDArray[np.int32] = np.zeros(requests, np.int32)
        self._table: NDArray[np.int32] = np.full(cells, -1, np.int32)
        self._indices: NDArray[np.int64] = np.zeros(rows, np.int64)
        self._rows = []
        self._generation += 1

    def _reserve(self, tokens: int, requests: int, cells: int, rows: int) -> None:
        sizes = (len(self._input_ids), len(self._past), len(self._table), len(self._indices))
        wanted = (tokens, requests, cells, rows)
        if any(w > s for w, s in zip(wanted, sizes, strict=True)):
            grown = [max(s, 1 << (w - 1).bit_length()) for w, s in zip(wanted, sizes, strict=True)]
            self._allocate(*grown)

    def build(self, segments: Sequence[Segment]) -> ModelInputs:
        """The arrays for `segments`, in order; table cells past a request's blocks are -1.

        The table grows by whole multiples of eight columns, so decoding steps seldom change its
        shape, and a row that only got longer is only added to.
        """
        num_tokens = num_rows = num_columns = 0
        for segment in segments:
            num_tokens += segment.num_tokens
            num_rows += segment.num_rows
            num_columns = max(num_columns, len(segment.block_ids))
        columns = -(-num_columns // 8) * 8
        requests = len(segments)
        self._reserve(num_tokens, requests, requests * columns, max(1, num_rows))
        if columns != self._num_columns:
            self._num_columns = columns
            self._rows = []
        table = self._table[: requests * columns].reshape(requests, columns)
        positions = self._positions[: num_tokens * self._positions_rows]
        if self._positions_rows > 1:
            positions = positions.reshape(self._positions_rows, num_tokens)
        self._cu_seqlens[0] = 0
        token = row = 0
        for index, segment in enumerate(segments):
            self._fill_tokens(segment, token, positions)
            token += segment.num_tokens
            self._past[index] = segment.start
            self._cu_seqlens[index + 1] = token
            if segment.num_rows == 1:
                self._indices[row] = token - 1
            elif segment.num_rows:
                stop = row + segment.num_rows
                self._indices[row:stop] = np.arange(token - segment.num_rows, token)
            row += segment.num_rows
            self._fill_table(table, index, segment)
        if not num_rows:
            self._indices[0] = 0
        return ModelInputs(
            self._input_ids[:num_tokens],
            positions,
            self._cu_seqlens[: requests + 1],
            self._past[:requests],
            table,
            self._slots[:num_tokens],
            self._indices[: max(1, num_rows)],
            num_rows,
            self._generation,
        )

    def _fill_tokens(self, segment: Segment, token: int, positions: NDArray[np.int64]) -> None:
        start, count, size = segment.start, segment.num_tokens, self._block_size
        if count == 1:
            self._input_ids[token] = segment.request.token_ids[start]
            positions[..., token] = start
            self._slots[token] = segment.block_ids[start // size] * size + start % size
            return
        stop = token + count
        self._input_ids[token:stop] = segment.request.token_ids[start : start + count]
        where = np.arange(start, start + count)
        positions[..., token:stop] = where
        first, last = start // size, (start + count - 1) // size
        blocks: NDArray[Any] = np.array(segment.block_ids[first : last + 1], np.int64)
        self._slots[token:stop] = blocks[where // size - first] * size + where % size

    def _fill_table(self, table: NDArray[np.int32], index: int, segment: Segment) -> None:
        request, blocks = segment.request, segment.block_ids
        preemptions, length = request.num_preemptions, len(blocks)
        if index < len(self._rows):
            known, known_preemptions, known_length = self._rows[index]
            same = known is request and known_preemptions == preemptions
            same = same and known_length <= length
            if same and table[index, known_length - 1] == blocks[known_length - 1]:
                if known_length < length:
                    table[index, known_length:length] = blocks[known_length:]
                    self._rows[index] = (request, preemptions, length)
                return
            self._rows[index] = (request, preemptions, length)
        else:
            self._rows.append((request, preemptions, length))
        table[index, :length] = blocks
        table[index, length:] = -1
