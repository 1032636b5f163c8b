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


class Interleaved:
    """The pieces of all samples as they come; the first error of any sample ends all.

    Args:
        at_once: samples that are open at a time; None = all.
    """

    def __init__(self, at_once: int | None = None) -> None:
        self._queue: asyncio.Queue[Piece | Exception | _Mark] = asyncio.Queue()
        self._places = None if at_once is None else asyncio.Semaphore(at_once)
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0
        self._awaited = False

    def clear(self) -> bool:
        """Whether all pieces so far were read and the reader waits for more."""
        return self._awaited and self._queue.empty()

    async def pieces(
        self, streams: Iterable[AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """Interleave.

        Args:
            streams: of the samples; taken one by one, each when it is begun.
        """
        beginning = asyncio.create_task(self._begin_all(streams))
        try:
            ended = 0
            all_begun = False
            while not (all_begun and ended == self._begun):
                self._awaited = True
                item = await self._queue.get()
                self._awaited = False
                if item is _Mark.SAMPLE_ENDED:
                    ended += 1
                elif item is _Mark.ALL_BEGUN:
                    all_begun = True
                elif isinstance(item, Exception):
                    raise item
                elif isinstance(item, Piece):
                    yield item
        finally:
            self._awaited = False
            beginning.cancel()
            open_tasks = [beginning, *self._tasks]
            for task in open_tasks:
                task.cancel()
            await asyncio.gather(*open_tasks, return_exceptions=True)

    async def _begin_all(self, streams: Iterable[AsyncGenerator[Piece, None]]) -> None:
        for stream in streams:
            if self._places is not None:
                await self._places.acquire()
            self._begun += 1
            task = asyncio.create_task(self._pump(stream))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if self._begun % GROUP == 0:
                await asyncio.sleep(0)
        self._queue.put_nowait(_Mark.ALL_BEGUN)

    async def _pump(self, stream: AsyncGenerator[Piece, None]) -> None:
        try:
            async with aclosing(stream):
                async for piece in stream:
                    self._queue.put_nowait(piece)
            self._queue.put_nowait(_Mark.SAMPLE_ENDED)
        except Exception as error:
            self._queue.put_nowait(error)
        if self._places is not None:
            self._places.release()
