"""Prompts of a wanted length in tokens, made of random tokens."""

from collections.abc import Sequence

import numpy as np

from ortloom.bench.samples import Sample
from ortloom.errors import BenchmarkFailed
from ortloom.models.tokenizer import REPLACEMENT, Tokenizer

_LEAST_WORDS = 256
_TRIES = 10


class PromptMaker:
    """Draws tokens and makes texts of them, each of which encodes to the wanted number of tokens.

    Words are preferred: tokens of letters behind a space stay what they are whatever stands next
    to them. A vocabulary with few of them gives all its tokens that are whole characters.

    Args:
        tokenizer: the server's own.
        draw: source of randomness.

    Raises:
        BenchmarkFailed: no token of the vocabulary can be used.
    """

    def __init__(self, tokenizer: Tokenizer, draw: np.random.Generator) -> None:
        self._tokenizer = tokenizer
        self._draw = draw
        self._specials = len(tokenizer.encode(""))
        clean = []
        words = []
        for token in range(tokenizer.vocab_size):
            text = "" if tokenizer.is_added(token) else tokenizer.token_text(token)
            if not text or REPLACEMENT in text or not text.isprintable():
                continue
            clean.append(token)
            if text[0] == " " and len(text) > 2 and text[1:].isalpha():
                words.append(token)
        self._pool = np.array(words if len(words) >= _LEAST_WORDS else clean)
        if not len(self._pool):
            raise BenchmarkFailed("the tokenizer has no token that stands for whole characters")

    def tokens(self, count: int) -> list[int]:
        """Random token ids."""
        return [int(i) for i in self._draw.choice(self._pool, count)]

    def sample(self, token_ids: Sequence[int], output_len: int) -> Sample:
        """A text of as many tokens, special ones that encoding adds counted in.

        Where neighbours join into one token others are appended, where they split the end is cut;
        after some tries the text is taken as it is, and its `prompt_len` is what it has.
        """
        length = max(1, len(token_ids) - self._specials)
        ids = list(token_ids[:length])
        for _ in range(_TRIES):
            text = self._tokenizer.decode(ids, skip_special_tokens=False)
            again = self._tokenizer.encode(text, add_special_tokens=False)
            if len(again) == length:
                break
            missing = length - len(again)
            ids = again[:length] if missing < 0 else again + self.tokens(missing)
        return Sample(text, len(again) + self._specials, output_len)
