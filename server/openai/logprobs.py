"""Logprobs of tokens in the two response forms, and prompt logprobs.

JSON has no infinity: values that are cut are written as `CUT`.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.messages import TokenDetail, TokenLogprobs
from ortloom.server.openai.detail import add_details
from ortloom.server.openai.event_template import to_json
from ortloom.server.openai.off_loop import position_json
from ortloom.server.openai.token_forms import ID_FORMS, forms_of, id_spelling

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

    Attributes:
        spelling: a token as written, and the bytes it adds to the text (true ones, also for a part
            of a character).
        forms: the same as JSON.
    """

    def __init__(self, tokenizer: Tokenizer | None, as_ids: bool) -> None:
        known = None if as_ids else tokenizer
        self.spelling: Callable[[int], tuple[str, list[int]]] = (
            id_spelling if known is None else known.spelling
        )
        self.forms = ID_FORMS if known is None else forms_of(known)

    def name(self, token_id: int) -> str:
        """The token as written."""
        return self.spelling(token_id)[0]


def _numbers(position: TokenLogprobs) -> tuple[list[int], tuple[bytes, ...]]:
    """Ids and logprobs in the order of `entries`, the latter as JSON."""
    ids, values = position.token_ids, position.logprobs
    rows = dict(zip(ids, values, strict=True))
    rows[ids[0]] = values[0]
    text = to_json(list(rows.values()))
    if min(values) <= CUT or b"null" in text:  # null: infinite or no number
        rows = values_of(position)
        text = to_json(list(rows.values()))
    return list(rows), tuple(text[1:-1].split(b","))


def entries(position: TokenLogprobs) -> list[tuple[int, float, int]]:
    """(id, logprob, rank): the position's own token, then the others without repeating it."""
    rows = zip(position.token_ids, position.logprobs, position.ranks, strict=True)
    seen: dict[int, tuple[int, float, int]] = {}
    for token, value, rank in rows:
        seen.setdefault(token, (token, finite(value), rank))
    return list(seen.values())


def values_of(position: TokenLogprobs) -> dict[int, float]:
    """Logprob by id, in the order of `entries`."""
    ids, values = position.token_ids, position.logprobs
    found = {t: v if v > CUT else CUT for t, v in zip(ids, values, strict=True)}
    own = values[0]
    found[ids[0]] = own if own > CUT else CUT  # where it repeats, its first value counts
    return found


_COMPLETION = b'{"text_offset":[%b],"token_logprobs":[%b],"tokens":[%b],"top_logprobs":[{%b}]}'


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
        self, token_ids: list[int], positions: Sequence[TokenLogprobs | None], offset: int
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
        spelling = self._names.spelling
        for token_id, position in zip(token_ids, positions, strict=True):
            name = spelling(token_id)[0]
            offsets.append(offset)
            tokens.append(name)
            offset += len(name)
            if position is None:
                values.append(None)
                tops.append(None)
                continue
            rows = values_of(position)
            values.append(rows[position.token_ids[0]])
            listed = islice(rows.items(), self._most)
            tops.append(position_json({spelling(t)[0]: value for t, value in listed}))
        return {
            "text_offset": offsets,
            "token_logprobs": values,
            "tokens": tokens,
            "top_logprobs": tops,
        }

    def json(self, token_ids: list[int], positions: Sequence[TokenLogprobs], offset: int) -> bytes:
        """The member as JSON, for the few tokens of a piece: much faster."""
        name_of, pair_of, most = self._names.forms.name, self._names.forms.pair, self._most
        offsets, values, tokens, tops = [], [], [], []
        for token_id, position in zip(token_ids, positions, strict=True):
            offsets.append(offset)
            tokens.append(name_of(token_id))
            offset += len(self._names.spelling(token_id)[0])
            ids, numbers = _numbers(position)
            values.append(numbers[0])
            pairs = list(map(pair_of, ids[:most]))
            if len(set(pairs)) < len(pairs):  # of members with one name the last one counts
                listed = zip(pairs, numbers[:most], strict=True)
                tops.append(b",".join([pair % number for pair, number in dict(listed).items()]))
            else:
                tops.append(b",".join(pairs) % numbers[:most])
        return _COMPLETION % (
            to_json(offsets)[1:-1],
            b",".join(values),
            b",".join(tokens),
            b"},{".join(tops),
        )


class ChatLogprobs:
    """Builds the `logprobs` member of chat choices.

    Args:
        names: how tokens are written.
        top: the request's `top_logprobs`; -1 = all.
        keep_all: list all entries (the request named token ids of its own).
    """

    def __init__(self, names: TokenNames, top: int, keep_all: bool = False) -> None:
        self._spelling = names.spelling
        self._forms = names.forms
        self._most = None if keep_all or top < 0 else top

    def build(
        self, positions: Sequence[TokenLogprobs], details: Sequence[TokenDetail] = ()
    ) -> dict[str, Any]:
        """The member for consecutive tokens."""
        content = []
        for position in positions:
            rows = values_of(position)
            own = self._entry(position.token_ids[0], rows[position.token_ids[0]])
            listed = [self._entry(t, value) for t, value in islice(rows.items(), self._most)]
            own["top_logprobs"] = position_json(listed)
            content.append(own)
        add_details(content, details)
        return {"content": content}

    def json(self, positions: Sequence[TokenLogprobs]) -> bytes:
        """The member as JSON, for the few tokens of a piece: much faster."""
        entry_of, most = self._forms.entry, self._most
        content = []
        for position in positions:
            ids, numbers = _numbers(position)
            own = entry_of(ids[0]) % numbers[0]
            listed = b",".join(map(entry_of, ids[:most])) % numbers[:most]
            content.append(b'%b,"top_logprobs":[%b]}' % (own[:-1], listed))
        return b'{"content":[%b]}' % b",".join(content)

    def _entry(self, token_id: int, value: float) -> dict[str, Any]:
        name, data = self._spelling(token_id)
        return {"token": name, "logprob": value, "bytes": data}


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
                "decoded_token": tokenizer.spelling(token)[0] if tokenizer else None,
            }
            for token, value, rank in entries(position)
        }
        listed.append(position_json(made))
    return listed
