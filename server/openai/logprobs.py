"""Logprobs of tokens in the two response forms, and prompt logprobs.

JSON has no infinity: values that are cut are written as `CUT`.
"""

from collections.abc import Sequence
from typing import Any

from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import TokenDetail, TokenLogprobs
from ortloom.server.openai.detail import add_details
from ortloom.server.openai.off_loop import position_json

CUT = -9999.0
"""Logprob of a token that a mask or cut excludes (and of NaN)."""


def finite(value: float) -> float:
    """A value JSON can hold."""
    return value if value > CUT else CUT


class TokenNames:
    """How tokens are written in logprobs: as text, or as `token_id:N`.

    Args:
        tokenizer: None = always as ids.
        as_ids: write ids.
    """

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool) -> None:
        self._tokenizer = None if as_ids else tokenizer

    def name(self, token_id: int) -> str:
        """The token as written."""
        if self._tokenizer is None:
            return f"token_id:{token_id}"
        return self._tokenizer.token_text(token_id)

    def named_bytes(self, token_id: int) -> list[int]:
        """Bytes the token adds to the text (true ones, also for a part of a character)."""
        if self._tokenizer is None:
            return list(f"token_id:{token_id}".encode())
        return list(self._tokenizer.token_bytes(token_id))


def entries(position: TokenLogprobs) -> list[tuple[int, float, int]]:
    """(id, logprob, rank): the position's own token, then the others without repeating it."""
    rows = zip(position.token_ids, position.logprobs, position.ranks, strict=True)
    seen: dict[int, tuple[int, float, int]] = {}
    for token, value, rank in rows:
        seen.setdefault(token, (token, finite(value), rank))
    return list(seen.values())


class CompletionLogprobs:
    """Builds the `logprobs` member of completion choices.

    Args:
        names: how tokens are written.
        top: the request's `logprobs`; entries beyond top + 1 are left out unless -1.
        keep_all: list all entries (the request named token ids of its own).
    """

    def __init__(self, names: TokenNames, top: int, keep_all: bool = False) -> None:
        self._names = names
        self._most = None if keep_all or top < 0 else top + 1

    def build(
        self, token_ids: list[int], positions: list[TokenLogprobs | None], offset: int
    ) -> dict[str, Any]:
        """The member for consecutive tokens.

        Args:
            token_ids: the tokens.
            positions: parallel; None where there is no logprob (the first prompt token).
            offset: characters of text before the first token.
        """
        offsets: list[int] = []
        values: list[float | None] = []
        tokens: list[str] = []
        tops: list[dict[str, float] | None] = []
        for token_id, position in zip(token_ids, positions, strict=True):
            name = self._names.name(token_id)
            offsets.append(offset)
            tokens.append(name)
            offset += len(name)
            if position is None:
                values.append(None)
                tops.append(None)
                continue
            rows = entries(position)
            values.append(rows[0][1])
            listed = rows[: self._most]
            tops.append(position_json({self._names.name(t): value for t, value, _ in listed}))
        return {
            "text_offset": offsets,
            "token_logprobs": values,
            "tokens": tokens,
            "top_logprobs": tops,
        }


class ChatLogprobs:
    """Builds the `logprobs` member of chat choices.

    Args:
        names: how tokens are written.
        top: the request's `top_logprobs`; -1 = all.
        keep_all: list all entries (the request named token ids of its own).
    """

    def __init__(self, names: TokenNames, top: int, keep_all: bool = False) -> None:
        self._names = names
        self._most = None if keep_all or top < 0 else top

    def build(
        self, positions: Sequence[TokenLogprobs], details: Sequence[TokenDetail] = ()
    ) -> dict[str, Any]:
        """The member for consecutive tokens."""
        content = []
        for position in positions:
            rows = entries(position)
            own = self._entry(rows[0])
            own["top_logprobs"] = position_json([self._entry(row) for row in rows[: self._most]])
            content.append(own)
        add_details(content, details)
        return {"content": content}

    def _entry(self, row: tuple[int, float, int]) -> dict[str, Any]:
        token_id, value, _ = row
        return {
            "token": self._names.name(token_id),
            "logprob": value,
            "bytes": self._names.named_bytes(token_id),
        }


def prompt_logprobs(
    positions: list[TokenLogprobs | None], tokenizer: Tokenizer | None
) -> list[dict[str, Any] | None]:
    """The `prompt_logprobs` member: first null, then objects by token id."""
    listed: list[dict[str, Any] | None] = []
    for position in positions:
        if position is None:
            listed.append(None)
            continue
        made = {
            str(token): {
                "logprob": value,
                "rank": rank,
                "decoded_token": tokenizer.token_text(token) if tokenizer else None,
            }
            for token, value, rank in entries(position)
        }
        listed.append(position_json(made))
    return listed
