"""Text of a growing token sequence, piece by piece.

The pieces joined are the text that decoding the whole sequence gives. A character whose bytes are
spread over several tokens is held back until it is complete; bytes that can no longer become a
character come out as U+FFFD.
"""

from collections.abc import Iterable, Sequence

from ortloom.models.tokenizer import REPLACEMENT, Tokenizer

_PROMPT_CONTEXT = 6
"""Prompt tokens kept as left context, so that a first word keeps its leading blank."""

_LONGEST_PENDING = 3
"""Replacement characters an unfinished character can decode to (one a byte in byte fallback)."""

_LONGEST_RUN = 8
"""Replacement characters that can still become text: an unfinished character and, in byte fallback
(where one bad byte spoils its whole run), the finished one before it. More are final."""

_LONGEST_WINDOW = 64
"""Tokens; a window that never ends in a whole character is cut at this length."""


class IncrementalDetokenizer:
    """Decodes a window of recent tokens and hands out what is new and final in it.

    The window keeps one piece of already given text as left context, because what a token reads
    as can depend on its neighbour (leading blanks).

    Args:
        tokenizer: the vocabulary.
        prompt_token_ids: tokens before the first pushed one; their text is not given out.
        skip_special_tokens: special tokens yield no text.
        spaces_between_special_tokens: False = neighbouring added tokens are joined directly.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Sequence[int] = (),
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> None:
        self._tokenizer = tokenizer
        self._inner_texts = tokenizer.inner_texts
        self._skip = skip_special_tokens
        self._join_added = not (skip_special_tokens or spaces_between_special_tokens)
        self._last_added = False
        self._window: list[int] = []
        self._context = 0  # tokens at the window's start whose text is all given out
        self._given = 0  # characters of the window's text already given out
        self._whole = False  # the window is all context: given out, and a whole character's end
        self._prime(prompt_token_ids)

    def _prime(self, prompt: Sequence[int]) -> None:
        """Take the end of the prompt as context, up to its last whole character."""
        window = [t for t in prompt[-4 * _PROMPT_CONTEXT :] if not self._hidden(t)]
        if not window:
            return
        for size in range(_PROMPT_CONTEXT, len(window)):
            if not self._decode(window[-size:]).startswith(REPLACEMENT):
                window = window[-size:]  # starts with a whole character
                break
        for pending in range(min(len(window), _LONGEST_PENDING + 1)):
            text = self._decode(window[: len(window) - pending])
            if not text.endswith(REPLACEMENT):
                self._window = window
                self._context = len(window) - pending
                self._given = len(text)
                self._whole = pending == 0
                return

    def _hidden(self, token_id: int) -> bool:
        return self._skip and token_id in self._tokenizer.special_ids

    def _decode(self, token_ids: list[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)

    def push(self, token_ids: Iterable[int]) -> str:
        """Append tokens; the text that is new and final."""
        return "".join([self.push_one(token) for token in token_ids])

    def push_one(self, token_id: int) -> str:
        """As `push` with one token."""
        if self._whole:
            text = self._inner_texts.get(token_id)
            if text is None:
                text = self._tokenizer.inner_text(token_id)
            if text:  # decoding it behind the window would say the same
                self._last_added = False
                self._window = [token_id]
                self._context = 1
                self._given = -1  # told when it is asked for
                return text
        if self._given < 0:
            self._given = len(self._decode(self._window))
        return self._step(token_id)

    def _step(self, token_id: int) -> str:
        self._whole = False
        added = self._join_added and self._tokenizer.is_added(token_id)
        if added and self._last_added:
            return self._append_joined(token_id)
        self._last_added = added
        if self._hidden(token_id) or not self._tokenizer.token_str(token_id):
            return ""
        self._window.append(token_id)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT):
            return self._take_stable(text)
        piece = text[self._given :]
        if piece:
            self._window = self._window[self._context :]
            self._context = len(self._window)
            self._given = len(self._decode(self._window))
            self._whole = True
        elif len(self._window) > _LONGEST_WINDOW:
            self._shorten(text)
        return piece

    def _append_joined(self, token_id: int) -> str:
        """An added token after another one: its own text, nothing between them."""
        piece = self.finish() + self._tokenizer.token_text(token_id)
        self._window = [token_id]
        self._context = 1
        self._given = len(self._decode(self._window))
        return piece

    def _take_stable(self, text: str) -> str:
        """Give out what stands before an unfinished character at the end of `text`."""
        whole = text.rstrip(REPLACEMENT)
        pending = len(text) - len(whole)
        end = len(whole) if pending <= _LONGEST_RUN else len(text) - _LONGEST_PENDING
        piece = text[self._given : end]
        self._given = max(self._given, end)
        if len(self._window) > _LONGEST_WINDOW:
            self._shorten(text)
        return piece

    def _shorten(self, text: str) -> None:
        """Drop the window's front where the rest decodes to the same end of the text."""
        for keep in range(_LONGEST_PENDING + 1, _LONGEST_WINDOW // 2):
            tail = self._decode(self._window[-keep:])
            given = len(tail) - (len(text) - self._given)
            if given >= 0 and text.endswith(tail):
                self._window = self._window[-keep:]
                self._context = 0
                self._given = given
                return

    def finish(self) -> str:
        """The held-back rest, as it is, once no more tokens come."""
        text = self._decode(self._window)
        piece = "" if self._given < 0 else text[self._given :]
        self._given = len(text)
        self._whole = False
        return piece
