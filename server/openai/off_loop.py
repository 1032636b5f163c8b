"""Large replies are built in a thread: a request for the whole vocabulary's logprobs must not hold
up the other requests of a front.

The thread hands the interpreter over every few milliseconds; what cannot be interrupted, encoding
JSON, is done for one position at a time (`position_json`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import msgspec

from ortloom.runtime.messages import TokenLogprobs

P = ParamSpec("P")
T = TypeVar("T")

INLINE_ENTRIES = 4096
"""Logprob entries that are turned into JSON on the event loop."""

_WIDE = 512


def entry_count(*groups: Iterable[TokenLogprobs | None] | None) -> int:
    """Entries of all positions."""
    return sum(
        len(position.token_ids)
        for positions in groups
        for position in positions or ()
        if position is not None
    )


async def built(entries: int, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` makes, in a thread if it has many logprob entries to go through."""
    if entries <= INLINE_ENTRIES:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def position_json(value: Any) -> Any:
    """A position's mapping or list, already as JSON if it is a wide one."""
    return msgspec.Raw(msgspec.json.encode(value)) if len(value) > _WIDE else value
