"""The `logprobs` member of tokens-out choices: numbers only, or packed arrays."""

import base64
import math
import struct
from collections.abc import Sequence
from typing import Any

from ortloom.runtime.messages import TokenDetail, TokenLogprobs
from ortloom.server.openai.detail import add_details
from ortloom.server.openai.logprobs import CUT, entries, finite


class GenerateLogprobs:
    """Builds the member.

    Args:
        top: the request's `logprobs`; -1 = all.
        keep_all: list all entries (the request named token ids of its own).
        sampled: add the flat list of the tokens' own values (`return_token_logprobs`).
        packed: the top ones as two arrays in place of entries (`return_top_k_logprobs`).
        listed: False leaves the entries out.
    """

    def __init__(
        self,
        top: int,
        *,
        keep_all: bool = False,
        sampled: bool = False,
        packed: bool = False,
        listed: bool = True,
    ) -> None:
        self._top = top
        self._most = None if keep_all or top < 0 else top + 1
        self._sampled = sampled
        self._packed = packed
        self._listed = listed

    def build(
        self, positions: Sequence[TokenLogprobs], details: Sequence[TokenDetail]
    ) -> dict[str, Any]:
        """The member for consecutive tokens."""
        member: dict[str, Any] = {"content": None}
        if self._packed:
            member["top_k"] = self._arrays(positions)
        elif self._listed:
            member["content"] = [self._entry(position) for position in positions]
            add_details(member["content"], details)
        if self._sampled:
            member["sampled"] = [finite(position.logprobs[0]) for position in positions]
        return member

    def _entry(self, position: TokenLogprobs) -> dict[str, Any]:
        listed = [
            {"token_id": token, "logprob": value, "rank": rank}
            for token, value, rank in entries(position)[: self._most]
        ]
        return {**listed[0], "top_logprobs": listed}

    def _arrays(self, positions: Sequence[TokenLogprobs]) -> dict[str, Any]:
        """Ids as little-endian int32 and values as float32, [tokens, k] row by row in base64; what
        is cut is -inf there."""
        k = self._top if self._top >= 0 else len(positions[0].token_ids) - 1 if positions else 0
        ids = [token for p in positions for token in p.token_ids[1 : 1 + k]]
        listed = [value for p in positions for value in p.logprobs[1 : 1 + k]]
        values = [value if value > CUT else -math.inf for value in listed]
        return {
            "num_positions": len(positions),
            "k": k,
            "token_ids": _packed("i", ids),
            "logprobs": _packed("f", values),
        }


def _packed(kind: str, items: Sequence[float]) -> str:
    """Little-endian numbers of four bytes each, in base64."""
    return base64.b64encode(struct.pack(f"<{len(items)}{kind}", *items)).decode()
