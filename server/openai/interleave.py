"""Many samples of one API request as one stream of pieces, without holding up anybody else.

A request may have thousands of samples. Only so many are in the engine at a time, so that requests
which come later do not queue behind all of them, and a client that leaves takes few back; and they
are begun in small groups, between which the front answers others.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from enum import Enum

from ortloom.server.openai.sample import Piece

GROUP = 32
"""Samples that are begun in one turn of the event loop."""


class _Mark(Enum):
    SAMPLE_ENDED = 1
    ALL_BEGUN = 2


async def interleave(
    streams: Iterable[AsyncGenerator[Piece, None]], at_once: int | None = None
) -> AsyncGenerator[Piece, None]:
    """The pieces of all samples as they come; the first error of any sample ends all.

    Args:
        streams: of the samples; taken one by one, each when it is begun.
        at_once: samples that are open at a time; None = all.
    """
    queue: asyncio.Queue[Piece | Exception | _Mark] = asyncio.Queue()
    places = None if at_once is None else asyncio.Semaphore(at_once)
    tasks: set[asyncio.Task[None]] = set()
    begun = 0

    async def pump(stream: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(stream):
                async for piece in stream:
                    queue.put_nowait(piece)
            queue.put_nowait(_Mark.SAMPLE_ENDED)
        except Exception as error:
            queue.put_nowait(error)
        if places is not None:
            places.release()

    async def begin_all() -> None:
        nonlocal begun
        for stream in streams:
            if places is not None:
                await places.acquire()
            begun += 1
            task = asyncio.create_task(pump(stream))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            if begun % GROUP == 0:
                await asyncio.sleep(0)
        queue.put_nowait(_Mark.ALL_BEGUN)

    beginning = asyncio.create_task(begin_all())
    try:
        ended = 0
        all_begun = False
        while not (all_begun and ended == begun):
            item = await queue.get()
            if item is _Mark.SAMPLE_ENDED:
                ended += 1
            elif item is _Mark.ALL_BEGUN:
                all_begun = True
            elif isinstance(item, Exception):
                raise item
            elif isinstance(item, Piece):
                yield item
    finally:
        beginning.cancel()
        open_tasks = [beginning, *tasks]
        for task in open_tasks:
            task.cancel()
        await asyncio.gather(*open_tasks, return_exceptions=True)
