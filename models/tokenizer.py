"""Text to token ids and back: a tokenizer folder read with the `tokenizers` library.

Knows tokenizer.json and tokenizer_config.json; does not know chat templates, requests or the
model. Text clean-up after decoding is never done, so that decoding a sequence piece by piece and
at once give the same text.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec
import tokenizers

from ortloom.errors import InvalidRequest, ManifestError

REPLACEMENT = "\ufffd"
"""What decoding puts where bytes are not a character (yet)."""

_SPELLINGS = 16384
"""Tokens whose text and bytes are remembered."""

_HELD_CHARACTERS = 2048
"""Characters, or tokens, up to which the library may hold the interpreter's lock. It lets other
threads run only where it is given a batch, of one here; seconds of a long text are theirs too."""

_WORD_BOUNDARY = "\u2581"
_NAMED_SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def _byte_alphabet() -> dict[str, int]:
    """The character each byte is written as in byte-level vocabularies, inverted."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    alphabet = {chr(byte): byte for byte in plain}
    others = (byte for byte in range(256) if byte not in set(plain))
    return alphabet | {chr(256 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()


def _types(node: object) -> set[str]:
    """All `type` names inside a tokenizer.json component, nested sequences included."""
    found: set[str] = set()
    if isinstance(node, dict):
        if isinstance(node.get("type"), str):
            found.add(node["type"])
        for value in node.values():
            found |= _types(value)
    elif isinstance(node, list):
        for value in node:
            found |= _types(value)
    return found


class _Model(msgspec.Struct):
    """Part of tokenizer.json: token → id, or a list of [token, score] in order of the ids."""

    vocab: dict[str, int] | list[tuple[str, float]] = msgspec.field(default_factory=dict)


class _Added(msgspec.Struct):
    """A token outside the learned vocabulary."""

    id: int
    content: str


class _File(msgspec.Struct):
    """What is read of tokenizer.json beside the backend. The backend tells the same, but building
    it a dictionary of its vocabulary and writing it out as text takes longer than loading it."""

    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_Added] = msgspec.field(default_factory=list)
    normalizer: Any = None
    pre_tokenizer: Any = None
    decoder: Any = None

    def vocabulary(self) -> tuple[int, int]:
        """One more than the largest id, and the characters of the longest token."""
        vocab = self.model.vocab
        if isinstance(vocab, dict):
            largest, tokens = max(vocab.values(), default=-1), list(vocab)
        else:
            largest, tokens = len(vocab) - 1, [token for token, _ in vocab]
        longest = max(map(len, tokens), default=1)
        for token in self.added_tokens:
            largest, longest = max(largest, token.id), max(longest, len(token.content))
        return largest + 1, longest


def _content(token: object) -> str | None:
    """A token of tokenizer_config.json: a string or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


_WORD_STEPS = (
    {"type": "Replace", "pattern": {"String": _WORD_BOUNDARY}, "content": " "},
    {"type": "ByteFallback"},
    {"type": "Fuse"},
)
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _joins_tokens(decoder: object) -> bool:
    """Whether a text is the texts of its tokens put together, but for its first one (which may
    lose a leading blank), added tokens and characters spread over several tokens."""
    if not isinstance(decoder, dict):
        return False
    if decoder.get("type") == "ByteLevel":
        return True
    steps = tuple(decoder.get("decoders") or ()) if decoder.get("type") == "Sequence" else ()
    return steps in (_WORD_STEPS, (*_WORD_STEPS, _STRIP))


class Tokenizer:
    """A loaded tokenizer; safe to share between threads (encoding and decoding do not change it).

    Args:
        backend: the tokenizer of tokenizer.json; its truncation and padding are switched off.
        file: what else that file says.
        config: tokenizer_config.json as a dict; only special token names are read.
    """

    def __init__(self, backend: tokenizers.Tokenizer, file: _File, config: dict[str, Any]) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self.config = config
        added = backend.get_added_tokens_decoder()
        self._added: dict[int, str] = {int(i): token.content for i, token in added.items()}
        self.special_ids = frozenset(int(i) for i, token in added.items() if token.special)
        self.vocab_size, longest = file.vocabulary()
        self._kinds = _types(file.decoder)
        self._joins = _joins_tokens(file.decoder)
        self.spelling: Callable[[int], tuple[str, list[int]]] = lru_cache(_SPELLINGS)(self._spell)
        """`token_text` and `token_bytes` of a token; the list is not to be changed."""
        self.inner_texts: dict[int, str] = {}
        """What `inner_text` has found out."""
        self._longest = self._characters_per_token(file, longest)

    def _characters_per_token(self, file: _File, longest: int) -> int | None:
        """Upper bound of the characters one token stands for; None if there is none.

        In byte-level vocabularies a token is written with one character a byte, and no text goes
        lost on the way unless a step removes it; normal forms join three characters at most.
        """
        if "ByteLevel" not in self._kinds or "Removed" in json.dumps(file.pre_tokenizer):
            return None
        return longest if file.normalizer is None else 3 * longest

    def surely_longer(self, text: str, num_tokens: int) -> bool:
        """True if a text is longer than `num_tokens` tokens can be, told without encoding it."""
        return self._longest is not None and len(text) > self._longest * num_tokens

    @classmethod
    def load(cls, folder: Path, config_file: Path | None = None) -> "Tokenizer":
        """Read a tokenizer folder.

        Args:
            folder: with tokenizer.json.
            config_file: read in place of the folder's tokenizer_config.json.

        Raises:
            ManifestError: tokenizer.json is missing or unreadable.
        """
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise ManifestError(f"'{folder}' has no tokenizer.json")
        try:
            data = path.read_bytes()
            backend = tokenizers.Tokenizer.from_buffer(data)
        except Exception as error:  # the library raises bare Exception
            raise ManifestError(f"tokenizer.json cannot be read: {error}") from None
        try:
            file = msgspec.json.decode(data, type=_File)
        except msgspec.MsgspecError:  # an older form, which the library knows and writes anew
            file = msgspec.json.decode(backend.to_str(), type=_File)
        config: dict[str, Any] = {}
        try:
            file_name = config_file or folder / "tokenizer_config.json"
            loaded = json.loads(file_name.read_text("utf-8"))
        except FileNotFoundError:
            loaded = {}
        except (OSError, ValueError) as error:
            raise ManifestError(f"tokenizer_config.json cannot be read: {error}") from None
        if isinstance(loaded, dict):
            config = loaded
        return cls(backend, file, config)

    @property
    def special_tokens(self) -> dict[str, str]:
        """Named special tokens (`bos_token` …) as templates see them; absent ones are left out."""
        pairs = ((name, _content(self.config.get(name))) for name in _NAMED_SPECIAL)
        return {name: text for name, text in pairs if text is not None}

    def _named_id(self, name: str) -> int | None:
        text = _content(self.config.get(name))
        return None if text is None else self._backend.token_to_id(text)

    @property
    def bos_token_id(self) -> int | None:
        """Id of the beginning-of-sequence token, or None."""
        return self._named_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """Id of the end-of-sequence token, or None."""
        return self._named_id("eos_token")

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text. Special tokens written out in the text become their ids.

        Raises:
            InvalidRequest: the text is not valid Unicode (a lone surrogate).
        """
        try:
            if len(text) <= _HELD_CHARACTERS:
                encoding = self._backend.encode(text, add_special_tokens=add_special_tokens)
            else:
                [encoding] = self._backend.encode_batch_fast(
                    [text], add_special_tokens=add_special_tokens
                )
            return list(encoding.ids)
        except (UnicodeEncodeError, TypeError):  # the library has no name for it
            raise InvalidRequest(
                "The text is not valid Unicode (it holds half of a pair)."
            ) from None

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of token ids; ids above the vocabulary decode to nothing.

        With `spaces_between_special_tokens` False (and special tokens kept) neighbouring added
        tokens are put together without what the decoder writes between them.
        """
        if skip_special_tokens or spaces_between_special_tokens:
            if len(token_ids) <= _HELD_CHARACTERS:
                return str(self._backend.decode(list(token_ids), skip_special_tokens))
            return str(self._backend.decode_batch([list(token_ids)], skip_special_tokens)[0])
        text = ""
        segment: list[int] = []
        context: list[int] = []
        for token in token_ids:
            last = segment[-1] if segment else (context[-1] if context else None)
            if token in self._added and last in self._added:
                text += self._with_context(context, segment) + self._added[token]
                context, segment = [token], []
            else:
                segment.append(token)
        return text + self._with_context(context, segment)

    def _with_context(self, context: list[int], segment: list[int]) -> str:
        """Text of `segment` as it reads after `context`."""
        whole = str(self._backend.decode(context + segment, False))
        return whole[len(self._backend.decode(context, False)) :] if context else whole

    def is_added(self, token_id: int) -> bool:
        """True for tokens outside the learned vocabulary (special ones are among them)."""
        return token_id in self._added

    def token_str(self, token_id: int) -> str:
        """The token as the vocabulary writes it (`Ġworld`); empty for ids without a token."""
        return str(self._backend.id_to_token(token_id) or "")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token adds to the text; empty for ids without a token."""
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self.token_str(token_id)
        if "ByteLevel" in self._kinds:
            return bytes(_BYTE_OF_CHAR[c] for c in token if c in _BYTE_OF_CHAR)
        if "ByteFallback" in self._kinds and len(token) == 6 and token.startswith("<0x"):
            return bytes([int(token[3:5], 16)])
        if "WordPiece" in self._kinds:
            return (token[2:] if token.startswith("##") else " " + token).encode()
        if self._kinds & {"Metaspace", "Replace"}:
            token = token.replace(_WORD_BOUNDARY, " ")
        return token.encode()

    def inner_text(self, token_id: int) -> str:
        """What a token adds to a text that has begun and ends in a whole character.

        Empty where that depends on its neighbours (added tokens, parts of characters, decoders
        that look at words) or is nothing; then only decoding tells.
        """
        text = self.inner_texts.get(token_id)
        if text is None:
            text = self.inner_texts[token_id] = self._find_inner_text(token_id)
        return text

    def _find_inner_text(self, token_id: int) -> str:
        token = self.token_str(token_id)
        if not self._joins or self.is_added(token_id):
            return ""
        if "ByteLevel" in self._kinds:
            if not all(c in _BYTE_OF_CHAR for c in token):
                return ""
        elif len(token) == 6 and token.startswith("<0x"):
            return ""
        text = self.token_text(token_id)
        return "" if REPLACEMENT in text else text

    def token_text(self, token_id: int) -> str:
        """The token alone as text, special ones included; part of a character gives U+FFFD."""
        return self.token_bytes(token_id).decode("utf-8", "replace")

    def _spell(self, token_id: int) -> tuple[str, list[int]]:
        data = self.token_bytes(token_id)
        return data.decode("utf-8", "replace"), list(data)

    @property
    def chat_templates(self) -> dict[str, str]:
        """Templates of tokenizer_config.json by name; the single one is `default`."""
        found = self.config.get("chat_template")
        if isinstance(found, str):
            return {"default": found}
        if isinstance(found, list):
            entries = [e for e in found if isinstance(e, dict)]
            return {str(e.get("name")): str(e.get("template")) for e in entries}
        return {}
