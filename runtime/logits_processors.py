"""Changes to one row of logits before a token is picked, and the token counts they need.

The order inside `LogitsProcessors.apply` is fixed: allowed ids, bad words, min_tokens mask, logit
bias, then penalties (repetition over prompt and output; frequency and presence over output). A row
is touched by itself only, so a request's numbers never depend on its neighbours.

This module does not know grammars (their mask comes earlier) nor temperature and cuts (later).
"""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.bad_words import BadWords
from ortloom.runtime.sampling_params import SamplingParams

NEG_INF = np.float32(-np.inf)

LARGEST = np.float32(1e30)
"""Bound of penalised logits: a penalty of any size must leave numbers that a temperature can still
divide. Far above any logit of a model."""


class TokenCounts:
    """Distinct token ids with how often each was seen, as arrays that grow in place.

    `ids` [n] i64 and `counts` [n] f32 are views of the first n entries, in order of appearance;
    n is `size`. `ids_address` and `counts_address` are where they start.
    """

    __slots__ = (
        "_capacity_counts",
        "_capacity_ids",
        "_where",
        "counts_address",
        "ids_address",
        "size",
    )

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._where: dict[int, int] = {}
        self.size = 0
        self._hold(np.zeros(64, np.int64), np.zeros(64, np.float32))
        for token in tokens:
            self.add(token)

    def _hold(self, ids: NDArray[np.int64], counts: NDArray[np.float32]) -> None:
        self._capacity_ids = ids
        self._capacity_counts = counts
        self.ids_address: int = ids.ctypes.data
        self.counts_address: int = counts.ctypes.data

    def add(self, token: int) -> None:
        """Count one more `token`."""
        slot = self._where.get(token)
        if slot is None:
            slot = self.size
            if slot == len(self._capacity_ids):
                self._hold(
                    np.concatenate([self._capacity_ids] * 2),
                    np.concatenate([self._capacity_counts] * 2),
                )
            self._where[token] = slot
            self._capacity_ids[slot] = token
            self._capacity_counts[slot] = 0
            self.size += 1
        self._capacity_counts[slot] += 1

    @property
    def ids(self) -> NDArray[np.int64]:
        """Distinct ids [n]."""
        return self._capacity_ids[: self.size]

    @property
    def counts(self) -> NDArray[np.float32]:
        """How often each was seen [n]."""
        return self._capacity_counts[: self.size]


def packed_bits(ids: NDArray[np.int64], vocab_size: int) -> NDArray[np.int32]:
    """A set of ids as words [ceil(V / 32)] i32: bit i % 32 of word i // 32.

    Raises:
        IndexError: an id outside the vocabulary.
    """
    flags = np.zeros((vocab_size + 31) // 32 * 32, np.uint8)
    if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
        raise IndexError(f"a token id is outside the vocabulary of {vocab_size}")
    flags[ids] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def _ids(tokens: Iterable[int]) -> NDArray[np.int64]:
    return np.array(sorted(set(tokens)), dtype=np.int64)


class LogitsProcessors:
    """The processors of one request.

    Attributes:
        active: whether `apply` may change anything.
        allowed: ascending ids [n] i64 that alone may be drawn, or None.
        end_ids: ids [n] i64 held back until `min_tokens` are out.
        bias_ids: ids [n] i64 that `bias` [n] f32 is added to.
        repetition: penalty of `seen`, the ids of prompt and output; None = off.
        frequency, presence: penalties of `output`, the ids of the output; None = off.

    Args:
        params: validated parameters.
        prompt: the prompt's ids, for the repetition penalty.
        vocab_size: V; ids outside are ignored.
        text: words that must not appear in the text.
    """

    __slots__ = (
        "_bad_words",
        "_min_tokens",
        "_text",
        "active",
        "allowed",
        "bias",
        "bias_ids",
        "end_ids",
        "frequency",
        "output",
        "presence",
        "repetition",
        "seen",
    )

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        vocab_size: int,
        text: BadWords | None = None,
    ) -> None:
        self._text = text
        self.allowed = None if params.allowed_token_ids is None else _ids(params.allowed_token_ids)
        words = [w for w in params.bad_words_token_ids or () if w and w[-1] < vocab_size]
        self._bad_words = [(w[:-1], w[-1]) for w in words]
        self._min_tokens = params.min_tokens
        ends = (params.eos_token_ids, params.secondary_eos_token_ids, params.stop_token_ids)
        self.end_ids = _ids(t for group in ends for t in group if 0 <= t < vocab_size)
        bias = params.logit_bias or {}
        self.bias_ids = np.fromiter(bias.keys(), np.int64, len(bias))
        self.bias = np.fromiter(bias.values(), np.float32, len(bias))
        self.repetition = np.float32(np.clip(params.repetition_penalty, 1 / LARGEST, LARGEST))
        self.frequency = np.float32(params.frequency_penalty)
        self.presence = np.float32(params.presence_penalty)
        repeats = params.repetition_penalty != 1.0
        counts = params.frequency_penalty != 0.0 or params.presence_penalty != 0.0
        self.seen = TokenCounts(dict.fromkeys(prompt)) if repeats else None
        self.output = TokenCounts() if counts else None
        self.active = bool(
            self.allowed is not None
            or self._bad_words
            or text is not None
            or (self._min_tokens > 0 and len(self.end_ids))
            or len(self.bias_ids)
            or repeats
            or counts
        )

    def observe(self, tokens: Iterable[int]) -> None:
        """Count newly generated tokens."""
        for token in tokens:
            if self.seen is not None:
                self.seen.add(token)
            if self.output is not None:
                self.output.add(token)

    def forbidden(self, token_ids: Sequence[int], num_output: int) -> list[int]:
        """Tokens that would complete a bad word.

        Args:
            token_ids: ids that end with the output.
            num_output: how many of them are output; only they count as a word's beginning.
        """
        found: list[int] = []
        size = len(token_ids)
        for prefix, last in self._bad_words:
            length = len(prefix)
            if length <= num_output and list(token_ids[size - length :]) == prefix:
                found.append(last)
        if self._text is not None:
            found += self._text.forbidden(token_ids[size - num_output :])
        return found

    def holds_back_ends(self, num_output: int) -> bool:
        """Whether `end_ids` are masked after `num_output` tokens."""
        return num_output < self._min_tokens

    def apply(
        self, row: NDArray[np.float32], output: Sequence[int], honour_min_tokens: bool = True
    ) -> None:
        """Change `row` [V] f32 in place.

        Args:
            row: logits of one request.
            output: the request's generated ids so far.
            honour_min_tokens: False when a finished grammar leaves only the end tokens.
        """
        if self.allowed is not None:
            kept = row[self.allowed]
            row.fill(NEG_INF)
            row[self.allowed] = kept
        words = self.forbidden(output, len(output))
        if words:
            row[words] = NEG_INF
        if honour_min_tokens and self.holds_back_ends(len(output)):
            row[self.end_ids] = NEG_INF
        if len(self.bias_ids):
            row[self.bias_ids] += self.bias
        if self.seen is not None:
            ids = self.seen.ids
            values = row[ids]
            with np.errstate(over="ignore"):
                scaled = np.where(values > 0, values / self.repetition, values * self.repetition)
            row[ids] = np.where(values > NEG_INF, np.clip(scaled, -LARGEST, LARGEST), NEG_INF)
        if self.output is not None:
            ids, counts = self.output.ids, self.output.counts
            row[ids] -= self.frequency * counts + self.presence
