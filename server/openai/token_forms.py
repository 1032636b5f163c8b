"""Tokens as they stand in the JSON of logprobs, remembered: bytes with a hole for the logprob."""

from collections.abc import Callable
from functools import lru_cache

from ortloom.models.tokenizer import Tokenizer
from ortloom.server.openai.event_template import to_json

_REMEMBERED = 16384
"""Tokens of a form."""

_TOKENIZERS = 4


class TokenForms:
    """The forms of one way to write tokens.

    Args:
        spelling: a token as written, and its bytes.

    Attributes:
        entry: a token as an object of a chat's list.
        pair: a token as a member of a completion's object.
        name: a token as a string (without a hole).
    """

    def __init__(self, spelling: Callable[[int], tuple[str, list[int]]]) -> None:
        self._spelling = spelling
        self.entry: Callable[[int], bytes] = lru_cache(_REMEMBERED)(self._entry)
        self.pair: Callable[[int], bytes] = lru_cache(_REMEMBERED)(self._pair)
        self.name: Callable[[int], bytes] = lru_cache(_REMEMBERED)(self._name)

    def _name(self, token_id: int) -> bytes:
        return to_json(self._spelling(token_id)[0])

    def _pair(self, token_id: int) -> bytes:
        return self._name(token_id).replace(b"%", b"%%") + b":%b"

    def _entry(self, token_id: int) -> bytes:
        name = self._name(token_id).replace(b"%", b"%%")
        data = to_json(self._spelling(token_id)[1])
        return b'{"token":' + name + b',"logprob":%b,"bytes":' + data + b"}"


def id_spelling(token_id: int) -> tuple[str, list[int]]:
    """A token as `token_id:N`."""
    name = f"token_id:{token_id}"
    return name, list(name.encode())


ID_FORMS = TokenForms(id_spelling)


@lru_cache(_TOKENIZERS)
def forms_of(tokenizer: Tokenizer) -> TokenForms:
    """The forms of a tokenizer's tokens as text."""
    return TokenForms(tokenizer.spelling)
