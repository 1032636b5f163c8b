"""Words that must not appear in an output's text, however tokens cut them.

A word is banned as text: the tokens that hold it, and after a beginning of it those that go on
with its rest. So neither another way to cut it nor a longer token brings it back.
"""

from collections.abc import Sequence

from ortloom.runtime.vocabulary_bytes import VocabularyBytes


class BadWords:
    """Follows one output.

    Args:
        words: the words; none is empty.
        vocabulary: the bytes of tokens.
    """

    __slots__ = ("_always", "_consumed", "_fallbacks", "_matched", "_vocabulary", "_words")

    def __init__(self, words: Sequence[str], vocabulary: VocabularyBytes) -> None:
        self._vocabulary = vocabulary
        self._words = [word.encode() for word in words]
        self._fallbacks = [_fallbacks(word) for word in self._words]
        self._matched = [0] * len(self._words)  # bytes of each word the output ends with
        self._consumed = 0
        held = (vocabulary.containing(word) for word in self._words)
        self._always = sorted({token for tokens in held for token in tokens})

    def forbidden(self, output: Sequence[int]) -> list[int]:
        """Tokens after which a word would be in the text, in ascending order.

        Args:
            output: the generated ids so far; all calls are about the same growing output.
        """
        for token in output[self._consumed :]:
            self._consumed += 1
            self._follow(self._vocabulary.token_bytes(token))
        rests = {
            word[length:]
            for word, fallbacks, matched in zip(
                self._words, self._fallbacks, self._matched, strict=True
            )
            for length in _lengths(matched, fallbacks)
        }
        if not rests:
            return self._always
        more = (self._vocabulary.beginning(rest) for rest in rests)
        return sorted({*self._always, *(token for tokens in more for token in tokens)})

    def _follow(self, data: bytes) -> None:
        for number, word in enumerate(self._words):
            fallbacks, matched = self._fallbacks[number], self._matched[number]
            for byte in data:
                while matched and (matched == len(word) or word[matched] != byte):
                    matched = fallbacks[matched]
                matched += word[matched] == byte
            self._matched[number] = fallbacks[matched] if matched == len(word) else matched


def _fallbacks(word: bytes) -> list[int]:
    """For each length of a beginning, the length of the longest shorter one that it ends with."""
    table = [0, 0]
    for at in range(1, len(word)):
        length = table[at]
        while length and word[length] != word[at]:
            length = table[length]
        table.append(length + (word[length] == word[at]))
    return table


def _lengths(matched: int, fallbacks: Sequence[int]) -> list[int]:
    """The lengths of all beginnings of a word that the text ends with."""
    lengths = []
    while matched:
        lengths.append(matched)
        matched = fallbacks[matched]
    return lengths
