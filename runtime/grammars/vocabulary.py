"""The tokens of a model as grammar engines need them: bytes, special ones, end ids."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ortloom.errors import InvalidRequest

if TYPE_CHECKING:
    from llguidance import LLTokenizer

_PARAM = "structured_outputs"


class GrammarVocabulary:
    """The vocabulary, read from the tokenizer's file when it is first needed.

    Attributes:
        vocab_size: number of logits columns, V.
        end_ids: the model's primary end ids below V.

    Args:
        tokenizer_file: the bundle's tokenizer.json; None = there is none.
        vocab_size: V.
        eos_token_ids: the model's primary end ids.
    """

    def __init__(
        self, tokenizer_file: Path | None, vocab_size: int, eos_token_ids: Sequence[int]
    ) -> None:
        self._file = tokenizer_file
        self.vocab_size = vocab_size
        self.end_ids = [t for t in eos_token_ids if 0 <= t < vocab_size]
        self._tokenizer: LLTokenizer | None = None
        self._lock = threading.Lock()

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer."""
        return self._file is not None

    def tokenizer(self) -> "LLTokenizer":
        """The byte table in llguidance's form. Reading it takes about half a second, once.

        Raises:
            InvalidRequest: there is no tokenizer.
        """
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                if self._file is None:
                    raise InvalidRequest("The bundle has no tokenizer, so no grammar.", _PARAM)
                text = self._file.read_text(encoding="utf-8")
                eos = self.end_ids or None
                # In two calls: each holds the interpreter lock, and with it the engine's steps.
                bare = LLTokenizer(text, n_vocab=self.vocab_size, eos_token=eos, slices=[])
                self._tokenizer = bare.with_slices(LLTokenizer.general_slices())
            return self._tokenizer

    def token_bytes(self) -> list[bytes | None]:
        """The bytes of each id [V]; None for special tokens and ids without a token.

        Raises:
            InvalidRequest: there is no tokenizer.
        """
        tokenizer = self.tokenizer()
        table: list[bytes | None] = []
        for token in range(self.vocab_size):
            data = b"" if tokenizer.is_special_token(token) else tokenizer.decode_bytes([token])
            table.append(data or None)
        return table

    def with_specials(self, text: str) -> list[str | int]:
        """A text cut at its special tokens, which become ids.

        Raises:
            InvalidRequest: there is no tokenizer.
        """
        tokenizer = self.tokenizer()
        pieces: list[str | int] = []
        plain: list[int] = []

        def flush() -> None:
            if plain:
                pieces.append(tokenizer.decode_str(plain))
                plain.clear()

        for token in tokenizer.tokenize_str(text, parse_special=True):
            if tokenizer.is_special_token(token):
                flush()
                pieces.append(token)
            else:
                plain.append(token)
        flush()
        return pieces
