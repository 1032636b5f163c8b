"""The bytes of all tokens, and which tokens hold or begin with given ones.

Read from the bundle's tokenizer at the first request that needs them; an engine that sees none
never pays for it. Safe to use from several threads.
"""

import threading
from bisect import bisect_left
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from ortloom.errors import InvalidRequest

if TYPE_CHECKING:
    from ortloom.models.tokenizer import Tokenizer

_CACHED_SETS = 4096


class VocabularyBytes:
    """One tokenizer's tokens.

    Args:
        tokenizer_file: the bundle's tokenizer.json; None = whatever needs it is refused.
        vocab_size: number of logits columns, V.
    """

    def __init__(self, tokenizer_file: Path | None, vocab_size: int) -> None:
        self._file = tokenizer_file
        self._vocab_size = vocab_size
        self._lock = threading.RLock()
        self._tokenizer: Tokenizer | None = None
        self._texts: list[bytes] = []
        self._sorted: list[tuple[bytes, int]] = []
        self._sets: OrderedDict[tuple[str, bytes], list[int]] = OrderedDict()

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text, special ones included.

        Raises:
            InvalidRequest: the bundle has no tokenizer.
        """
        with self._lock:
            if self._tokenizer is None:
                if self._file is None:
                    raise InvalidRequest("The bundle has no tokenizer.")
                from ortloom.models.tokenizer import Tokenizer

                self._tokenizer = Tokenizer.load(self._file.parent)
        return self._tokenizer.token_bytes(token_id)

    def load(self) -> None:
        """Read what `containing` and `beginning` look through; takes some 100 ms.

        Raises:
            InvalidRequest: the bundle has no tokenizer.
        """
        with self._lock:
            if self._texts:
                return
            self.token_bytes(0)
            assert self._tokenizer is not None
            special = self._tokenizer.special_ids
            texts = [
                b"" if i in special else self._tokenizer.token_bytes(i)
                for i in range(self._vocab_size)
            ]
            self._sorted = sorted((text, i) for i, text in enumerate(texts) if text)
            self._texts = texts

    def containing(self, part: bytes) -> list[int]:
        """Tokens whose bytes hold `part`, in ascending order; special ones are no text."""
        return self._found("in", part)

    def beginning(self, part: bytes) -> list[int]:
        """Tokens whose bytes begin with `part`, in ascending order; special ones are no text."""
        return self._found("at", part)

    def _found(self, how: str, part: bytes) -> list[int]:
        self.load()
        with self._lock:
            known = self._sets.get((how, part))
            if known is not None:
                self._sets.move_to_end((how, part))
                return known
            if how == "in":
                found = [i for i, text in enumerate(self._texts) if part in text]
            else:
                found = []
                for text, token in self._sorted[bisect_left(self._sorted, (part, -1)) :]:
                    if not text.startswith(part):
                        break
                    found.append(token)
                found.sort()
            self._sets[(how, part)] = found
            if len(self._sets) > _CACHED_SETS:
                self._sets.popitem(last=False)
            return found
