"""What the matchers of the optional engines share: the next mask is made as a token is taken."""

import ctypes
from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.grammars.vocabulary import GrammarVocabulary
from ortloom.runtime.logits_processors import packed_bits


class EagerMatcher(ABC):
    """Implements `GrammarMatcher` over an engine that has its own idea of one.

    Args:
        vocabulary: of the model.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary
        ends = np.array(sorted(set(vocabulary.end_ids)), np.int64)
        self._others = ~packed_bits(ends, vocabulary.vocab_size)
        self._bits: NDArray[np.int32] = np.zeros(len(self._others), np.int32)
        self._accepting = False
        self._error = ""
        self._taken: list[int] = []

    @abstractmethod
    def begin(self) -> "EagerMatcher":
        """Another matcher at the start of the same grammar."""

    @abstractmethod
    def take(self, token: int) -> bool:
        """Go on by one token; False if it does not fit. May raise what the engine raises."""

    @abstractmethod
    def fill(self, bits: NDArray[np.int32]) -> bool:
        """Write the tokens that may follow into `bits` [ceil(V / 32)], all 0 before; whether the
        output may end here. May raise what the engine raises."""

    def look(self) -> None:
        """Work out the mask; once after the subclass is set up, then after each token."""
        self._bits[:] = 0
        try:
            self._accepting = self.fill(self._bits)
        except Exception as error:  # engines raise many kinds
            self._error = f"{type(error).__name__}: {error}"
            self._accepting = False

    def consume_token(self, sampled_token: int, /) -> bool:
        """See GrammarMatcher."""
        if self._error:
            return False
        try:
            fits = self.take(sampled_token)
        except Exception as error:
            self._error = f"{type(error).__name__}: {error}"
            return False
        if not fits:
            self._error = f"token {sampled_token} does not fit the grammar"
            return False
        self._taken.append(sampled_token)
        self.look()
        return not self._error

    def is_accepting(self) -> bool:
        """See GrammarMatcher."""
        return self._accepting

    def is_stopped(self) -> bool:
        """See GrammarMatcher."""
        only_ends = self._accepting and not (self._bits & self._others).any()
        return only_ends or bool(self._error)

    def is_error(self) -> bool:
        """See GrammarMatcher."""
        return bool(self._error)

    def get_error(self) -> str:
        """See GrammarMatcher."""
        return self._error

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        """See GrammarMatcher."""
        size = min(trg_byte_size, self._bits.nbytes)
        ctypes.memmove(trg_pointer, self._bits.ctypes.data, size)

    def deep_copy(self) -> "EagerMatcher":
        """See GrammarMatcher."""
        made = self.begin()
        for token in self._taken:
            made.consume_token(token)
        return made


def set_bits(bits: NDArray[np.int32], tokens: list[int]) -> None:
    """Set the bits of some ids in words [ceil(V / 32)] i32."""
    ids = np.asarray(tokens, np.int64)
    ids = ids[(ids >= 0) & (ids < 32 * len(bits))]
    flags = np.zeros(32 * len(bits), np.uint8)
    flags[ids] = 1
    bits |= np.packbits(flags, bitorder="little").view(np.int32)
