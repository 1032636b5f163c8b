"""What a grammar engine is asked for."""

from typing import Protocol

from ortloom.runtime.sampling_params import StructuredOutput


class GrammarMatcher(Protocol):
    """One request's place in a compiled grammar. Errors never raise: they stay in the matcher."""

    def consume_token(self, sampled_token: int, /) -> bool:
        """Go on by one token; False and an error if it does not fit."""

    def is_accepting(self) -> bool:
        """Whether the output may end here."""

    def is_stopped(self) -> bool:
        """Whether nothing but an end token can follow; also true after an error."""

    def is_error(self) -> bool:
        """Whether the matcher has failed."""

    def get_error(self) -> str:
        """Why; empty without an error."""

    def unsafe_compute_mask_ptr(self, trg_pointer: int, trg_byte_size: int, /) -> None:
        """Write the tokens that may follow at an address: bit i % 32 of i32 word i // 32."""

    def deep_copy(self) -> "GrammarMatcher":
        """An independent matcher at the same place."""


class GrammarBackend(Protocol):
    """A grammar engine over one vocabulary. May be used from several threads."""

    def compile(self, constraint: StructuredOutput) -> GrammarMatcher:
        """A matcher at the start of a constraint, with `is_error` set if it cannot be compiled.

        Raises:
            InvalidRequest: over a limit, not of its kind, or of a kind this engine does not know.
        """
