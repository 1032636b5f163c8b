"""A front's answers to what other fronts ask about the responses that it keeps."""

import asyncio
import logging
from pathlib import Path

import msgspec

from ortloom.server.control import frame
from ortloom.server.openai.responses.peer_messages import (
    Answer,
    Cancel,
    Copy,
    End,
    Fetch,
    FetchItem,
    Follow,
    Frames,
    GivenUp,
    GiveUp,
    Item,
    Missing,
    Question,
    read_question,
)
from ortloom.server.openai.responses.store import ResponseStore

logger = logging.getLogger("ortloom.server")

_BACKLOG = 1024


class PeerServer:
    """Listens on a unix socket.

    Args:
        path: of the socket.
        store: what the front keeps.
    """

    def __init__(self, path: Path, store: ResponseStore) -> None:
        self._path = path
        self._store = store
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Begin to answer."""
        self._path.unlink(missing_ok=True)  # of a front that died
        self._server = await asyncio.start_unix_server(
            self._connected, str(self._path), backlog=_BACKLOG
        )

    async def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        working: asyncio.Task[None] | None = None
        hung_up: asyncio.Task[bytes] | None = None
        try:
            question = await read_question(reader)
            working = asyncio.create_task(self._answer(question, writer))
            hung_up = asyncio.create_task(reader.read(1))
            await asyncio.wait({working, hung_up}, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.IncompleteReadError):
            logger.debug("another front hung up")
        finally:
            for part in filter(None, (working, hung_up)):
                part.cancel()
            found = await asyncio.gather(*filter(None, (working, hung_up)), return_exceptions=True)
            for error in found:
                if isinstance(error, Exception) and not isinstance(error, OSError):
                    logger.error("a question of another front failed", exc_info=error)
            writer.close()

    async def _answer(self, question: Question, writer: asyncio.StreamWriter) -> None:
        if isinstance(question, Follow):
            await self._show(question, writer)
            return
        writer.write(frame(await self._look(question)))
        await writer.drain()

    async def _look(self, question: Fetch | FetchItem | Cancel | GiveUp) -> Answer:
        store = self._store
        if isinstance(question, FetchItem):
            item = store.item(question.item_id)
            return Missing() if item is None else Item(msgspec.json.encode(item))
        if isinstance(question, GiveUp):
            return GivenUp(store.give_up(question.response_id))
        found = store.get(question.response_id)
        if found is None:
            return Missing()
        copy = Copy(found.status, found.body, found.events is not None)
        if isinstance(question, Cancel):
            await found.cancel()
            return Copy(found.status, found.body, found.events is not None)
        if question.conversation:
            copy.messages = msgspec.json.encode(found.conversation.messages)
            copy.size = found.conversation.size
        return copy

    async def _show(self, question: Follow, writer: asyncio.StreamWriter) -> None:
        found = self._store.get(question.response_id)
        if found is not None and found.events is not None:
            async for data in found.events.follow(question.start):
                writer.write(frame(Frames(data)))
                await writer.drain()
        writer.write(frame(End()))
        await writer.drain()
