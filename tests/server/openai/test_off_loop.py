"""Replies with the logprobs of a whole vocabulary are built beside the event loop."""

import asyncio
import time

import msgspec

from ortloom.runtime.messages import TokenLogprobs
from ortloom.server.openai.logprobs import (
    ChatLogprobs,
    CompletionLogprobs,
    TokenNames,
    prompt_logprobs,
)
from ortloom.server.openai.off_loop import built, entry_count

WIDE = 5000


def position(width):
    ids = list(range(width))
    return TokenLogprobs([3, *ids], [-1.0 - i for i in (3, *ids)], [1, *range(1, width + 1)])


def plain(value):
    return msgspec.json.decode(msgspec.json.encode(value))


def test_wide_positions_read_as_narrow_ones():
    names = TokenNames(None, True)
    wide, narrow = position(WIDE), position(20)
    completion = CompletionLogprobs(names, -1)
    both = plain(completion.build([3, 3], [wide, narrow], 0))
    assert len(both["top_logprobs"][0]) == WIDE
    shared = {name: both["top_logprobs"][0][name] for name in both["top_logprobs"][1]}
    assert shared == both["top_logprobs"][1]
    chat = plain(ChatLogprobs(names, -1).build([wide, narrow]))["content"]
    assert len(chat[0]["top_logprobs"]) == WIDE
    assert {**chat[0], "top_logprobs": None} == {**chat[1], "top_logprobs": None}
    listed = plain(prompt_logprobs([None, wide], None))
    assert listed[0] is None
    assert listed[1]["7"] == {"logprob": -8.0, "rank": 8, "decoded_token": None}


def test_others_go_on_meanwhile():
    positions = [None, *[position(WIDE)] * 120]

    async def measure():
        longest = 0.0

        async def tick():
            nonlocal longest
            last = time.perf_counter()
            while True:
                await asyncio.sleep(0)
                now = time.perf_counter()
                longest, last = max(longest, now - last), now

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        start = time.perf_counter()
        await built(entry_count(positions), prompt_logprobs, positions, None)
        took = time.perf_counter() - start
        ticking.cancel()
        return longest, took

    longest, took = asyncio.run(measure())
    assert longest < took / 3
