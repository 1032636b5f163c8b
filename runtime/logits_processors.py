"""Changes to one row of logits before a token is picked, and the token counts they need.

The order inside `LogitsProcessors.apply` is fixed: allowed ids, bad words, min_tokens mask, logit
bias, then penalties (repetition over prompt and output; frequency and presence over output). A row
is touched by itself only, so a request's numbers never depend on its neighbours.

This module does not know grammars (their mask comes earlier) nor temperature and cuts (later).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.sampling_params import SamplingParams

NEG_INF = np.float32(-np.inf)

LARGEST = np.float32(1e30)
"""Bound of penalised logits: a penalty of any size must leave numbers that a temperature can still
divide. Far above any logit of a model."""


class TokenCounts:
    """Distinct token ids with how often each was seen, as arrays that grow in place.

    `ids` [n] i64 and `counts` [n] f32 are views of the first n entries, in order of appearance.
    """

    __slots__ = ("_capacity_counts", "_capacity_ids", "_size", "_where")

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._where: dict[int, int] = {}
        self._capacity_ids: NDArray[np.int64] = np.zeros(64, np.int64)
        self._capacity_counts: NDArray[np.float32] = np.zeros(64, np.float32)
        self._size = 0
        for token in tokens:
            self.add(token)

    def add(self, token: int) -> None:
        """Count one more `token`."""
        slot = self._where.get(token)
        if slot is None:
            slot = self._size
            if slot == len(self._capacity_ids):
                self._capacity_ids = np.concatenate([self._capacity_ids] * 2)
                self._capacity_counts = np.concatenate([self._capacity_counts] * 2)
            self._where[token] = slot
            self._capacity_ids[slot] = token
            self._capacity_counts[slot] = 0
            self._size += 1
        self._capacity_counts[slot] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct ids [n]."""
        return self._capacity_ids[: self._size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each was seen [n]."""
        return self._capacity_counts[: self._size]


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.array(sorted(set(tokens)), dtype=np.int64)


class LogitsProcessors:
    """The processors of one request.

    Args:
        params: validated parameters.
        prompt: the prompt's ids, for the repetition penalty.
        vocab_size: V; ids outside are ignored.
    """

    __slots__ = (
        "_allowed",
        "_bad_words",
        "_bias",
        "_bias_ids",
        "_frequency",
        "_masked_until_min",
        "_min_tokens",
        "_output",
        "_presence",
        "_repetition",
        "_seen",
        "active",
    )

    def __init__(self, params: SamplingParams, prompt: Sequence[int], vocab_size: int) -> None:
        self._allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        words = [w for w in params.bad_words_token_ids or () if w and w[-1] < vocab_size]
        self._bad_words = [(w[:-1], w[-1]) for w in words]
        self._min_tokens = params.min_tokens
        ends = (params.eos_token_ids, params.secondary_eos_token_ids, params.stop_token_ids)
        self._masked_until_min = _ids(t for group in ends for t in group if 0 <= t < vocab_size)
        bias = params.logit_bias or {}
        self._bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self._bias = np.fromiter(bias.values(), np.float32, len(bias))
        self._repetition = np.float32(np.clip(params.repetition_penalty, 1 / LARGEST, LARGEST))
        self._frequency = params.frequency_penalty
        self._presence = params.presence_penalty
        repeats = params.repetition_penalty != 1.0
        counts = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        self._seen = TokenCounts(set(prompt)) if repeats else None
        self._output = TokenCounts() if counts else None
        self.active = bool(
            self._allowed is not None
            or self._bad_words
            or (self._min_tokens > 0 and len(self._masked_until_min))
            or len(self._bias_ids)
            or repeats
            or counts
        )

    def observe(self, tokens: Iterable[int]) -> None:
        """Count newly generated tokens."""
        for token in tokens:
            if self._seen is not None:
                self._seen.add(token)
            if self._output is not None:
                self._output.add(token)

    def apply(
        self, row: NDArray[np.float32], output: Sequence[int], honour_min_tokens: bool = True
    ) -> None:
        """Change `row` [V] f32 in place.

        Args:
            row: logits of one request.
            output: the request's generated ids so far.
            honour_min_tokens: False when a finished grammar leaves only the end tokens.
        """
        if self._allowed is not None:
            kept = row[self._allowed]
            row.fill(NEG_INF)
            row[self._allowed] = kept
        for prefix, last in self._bad_words:
            if not prefix or list(output[-len(prefix) :]) == prefix:
                row[last] = NEG_INF
        if honour_min_tokens and len(output) < self._min_tokens:
            row[self._masked_until_min] = NEG_INF
        if len(self._bias_ids):
            row[self._bias_ids] += self._bias
        if self._seen is not None:
            ids = self._seen.ids
            values = row[ids]
            with np.errstate(over="ignore"):
                scaled = np.where(values > 0, values / self._repetition, values * self._repetition)
            row[ids] = np.where(values > NEG_INF, np.clip(scaled, -LARGEST, LARGEST), NEG_INF)
        if self._output is not None:
            ids, counts = self._output.ids, self._output.counts
            loss = np.float32(self._frequency) * counts + np.float32(self._presence)
            row[ids] -= loss
