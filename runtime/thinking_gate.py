"""Reasoning before a constraint, and its budget: what a request's grammar is while it thinks.

Stands where the grammar's state would: free inside reasoning, the forced end marker once the budget
is used up, and the grammar, if there is one, from the token after the marker on. A function of the
output tokens alone, as `GrammarState` is.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ortloom.models.thinking import Thinking, ThinkingTracker
from ortloom.runtime.logits_processors import packed_bits
from ortloom.runtime.structured_output import GrammarState


class ThinkingGate:
    """One request's place in its reasoning.

    Args:
        thinking: markers and budget.
        tracker: at the start of the output; owned by this object.
        grammar: at its start; None = nothing is constrained after the reasoning.
        vocab_size: V.
    """

    __slots__ = (
        "_all",
        "_bits",
        "_closed",
        "_closing",
        "_consumed",
        "_grammar",
        "_thinking",
        "_tracker",
        "_vocab_size",
    )

    def __init__(
        self,
        thinking: Thinking,
        tracker: ThinkingTracker,
        grammar: GrammarState | None,
        vocab_size: int,
    ) -> None:
        self._thinking = thinking
        self._tracker = tracker
        self._grammar = grammar
        self._vocab_size = vocab_size
        if grammar is not None and thinking.start_token is None and tracker.phase == "before":
            tracker.phase = "after"  # the grammar would have to allow the marker's tokens
        self._all: NDArray[np.int32] = np.full((vocab_size + 31) // 32, -1, np.int32)
        self._bits = self._all
        self._consumed = 0
        self._closing: int | None = None  # output position of the first forced token
        self._closed = 0  # output position of the first token after reasoning
        self._note_budget()

    @property
    def error(self) -> str | None:
        """Why the grammar cannot go on."""
        return None if self._grammar is None else self._grammar.error

    @property
    def complete(self) -> bool:
        """True when only an end token can follow."""
        after = self._tracker.phase == "after"
        return after and self._grammar is not None and self._grammar.complete

    @property
    def address(self) -> int:
        """Of the newest bitmask."""
        return int(self._bits.ctypes.data)

    def advance(self, output: Sequence[int]) -> None:
        """Consume the output tokens not seen yet."""
        tracker = self._tracker
        while self._consumed < len(output) and tracker.phase != "after":
            tracker.push(output[self._consumed])
            self._consumed += 1
            if tracker.ended:
                self._closed = self._consumed
            self._note_budget()
        if tracker.phase != "inside" and self._grammar is not None:
            self._grammar.advance(output[self._closed :])

    def _note_budget(self) -> None:
        """Begin the end marker once the budget is used up; one that is begun may be completed."""
        tracker, budget = self._tracker, self._thinking.budget
        if budget is None or self._closing is not None or tracker.phase != "inside":
            return
        if tracker.count >= budget and not tracker.in_marker:
            self._closing = self._consumed

    def forced(self) -> int | None:
        """The one token that can come next, by the budget or by the grammar; else None."""
        if self._tracker.phase == "inside":
            return self._closing_token()
        if self._grammar is None or self._may_begin:
            return None
        return self._grammar.forced()

    @property
    def _may_begin(self) -> bool:
        """The start marker may come in place of what the grammar allows."""
        before = self._tracker.phase == "before" and self._consumed == 0
        return before and self._thinking.start_token is not None

    def _closing_token(self) -> int | None:
        """The token of the end marker that is due inside reasoning."""
        if self._closing is None:
            return None
        at = self._consumed - self._closing
        return self._thinking.closing[at] if at < len(self._thinking.closing) else None

    def mask(self, row: NDArray[np.float32]) -> None:
        """Set the logits [V] f32 of every token that must not come next to -inf."""
        bits = self.bitmask()
        if self.error is None:
            allowed = np.unpackbits(bits.view(np.uint8), bitorder="little")[: self._vocab_size]
            np.copyto(row, np.float32(-np.inf), where=allowed == 0)

    def bitmask(self) -> NDArray[np.int32]:
        """The tokens that may come next: [ceil(V / 32)], bit i % 32 of word i // 32."""
        if self._tracker.phase == "inside":
            closing = self._closing_token()
            self._bits = self._all if closing is None else self._one(closing)
        elif self._grammar is None:
            self._bits = self._all
        else:
            self._bits = self._grammar.bitmask()
            start = self._thinking.start_token
            if start is not None and self._may_begin:
                self._bits = self._bits | self._one(start)
        return self._bits

    def _one(self, token: int) -> NDArray[np.int32]:
        return packed_bits(np.array([token], dtype=np.int64), self._vocab_size)
