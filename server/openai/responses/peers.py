"""Stored responses of several fronts: each front keeps what it generated and asks the others for
the rest, over unix sockets in the server's private folder.

A connection carries one question and its answer; hanging up takes the question back. A front that
is gone has lost what it kept, as a server that restarts has.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ortloom.errors import FrontBusy, RequestFailed
from ortloom.server.control import frame
from ortloom.server.openai.responses.owners import Owners
from ortloom.server.openai.responses.peer_messages import (
    Answer,
    Cancel,
    Copy,
    Fetch,
    FetchItem,
    Follow,
    Frames,
    GivenUp,
    GiveUp,
    Item,
    Missing,
    Question,
    read_answer,
)
from ortloom.server.openai.responses.peer_server import PeerServer
from ortloom.server.openai.responses.store import UNFINISHED, Conversation, ResponseStore
from ortloom.server.openai.wire_chat import ChatMessage

PATIENCE = 20.0
"""Seconds another front may take to answer."""


class ResponsePeers:
    """One front's way to what the others keep, and theirs to what it keeps.

    Args:
        folder: private to the server.
        index: of the front.
        store: what the front keeps; made with `owners`.
        owners: tells who has an id.
    """

    def __init__(self, folder: Path, index: int, store: ResponseStore, owners: Owners) -> None:
        self._folder = folder
        self._index = index
        self._owners = owners
        self._server = PeerServer(self._socket(index), store)

    async def start(self) -> None:
        """Begin to answer the others."""
        self._owners.forget_own()
        await self._server.start()

    async def close(self) -> None:
        """Answer no more."""
        await self._server.close()

    async def find(
        self, response_id: str, *, conversation: bool = False
    ) -> "RemoteResponse | None":
        """A response of another front, None where nobody has it.

        Raises:
            FrontBusy: the front that has it does not answer.
        """
        owner = self._other(response_id)
        if owner is None:
            return None
        answer = await self._ask(owner, Fetch(response_id, conversation))
        if not isinstance(answer, Copy):
            return None
        return RemoteResponse(self, owner, response_id, answer)

    async def item(self, item_id: str) -> dict[str, Any] | None:
        """An output item of another front's response; raises as `find`."""
        owner = self._other(item_id)
        if owner is None:
            return None
        answer = await self._ask(owner, FetchItem(item_id))
        if not isinstance(answer, Item):
            return None
        item: dict[str, Any] = msgspec.json.decode(answer.body)
        return item

    async def take(self, response_id: str) -> bool:
        """Make an id this front's own; another one's finished response of that id is forgotten.

        Returns:
            False when another front is generating it. Raises as `find`.
        """
        while not self._owners.claim(response_id):
            owner = self._other(response_id)
            if owner is None:
                continue  # given back just now
            answer = await self._ask(owner, GiveUp(response_id))
            if isinstance(answer, GivenUp) and not answer.free:
                return False
            self._owners.evict(response_id, owner)
        return True

    async def cancel(self, owner: int, response_id: str) -> Copy | None:
        """End a response of another front; what it came to."""
        answer = await self._ask(owner, Cancel(response_id))
        return answer if isinstance(answer, Copy) else None

    async def follow(self, owner: int, response_id: str, start: int) -> AsyncGenerator[bytes, None]:
        """Events of another front's response.

        Raises:
            RequestFailed: that front ended before the response did.
        """
        try:
            async with self._connection(owner, Follow(response_id, start)) as reader:
                while True:
                    answer = await read_answer(reader)
                    if not isinstance(answer, Frames):
                        return
                    yield answer.data
        except (OSError, asyncio.IncompleteReadError):
            raise RequestFailed("the process that generated the response is gone") from None

    def _other(self, key: str) -> int | None:
        owner = self._owners.owner(key)
        return None if owner == self._index else owner

    async def _ask(self, owner: int, question: Question) -> Answer:
        try:
            async with asyncio.timeout(PATIENCE), self._connection(owner, question) as reader:
                return await read_answer(reader)
        except (FileNotFoundError, ConnectionError, asyncio.IncompleteReadError):
            return Missing()  # it is gone
        except OSError:  # a time-out, or so many questions that no more can be put
            raise FrontBusy("The process that keeps the response does not answer.") from None

    @asynccontextmanager
    async def _connection(
        self, owner: int, question: Question
    ) -> AsyncGenerator[asyncio.StreamReader, None]:
        reader, writer = await asyncio.open_unix_connection(str(self._socket(owner)))
        try:
            writer.write(frame(question))
            yield reader
        finally:
            writer.close()

    def _socket(self, index: int) -> Path:
        return self._folder / f"front-{index}"


@dataclass(slots=True, eq=False)
class RemoteEvents:
    """The events of another front's response."""

    peers: ResponsePeers
    owner: int
    response_id: str

    def follow(self, start: int = 0) -> AsyncGenerator[bytes, None]:
        """As `EventLog.follow`; raises RequestFailed when that front ends first."""
        return self.peers.follow(self.owner, self.response_id, start)


class RemoteResponse:
    """A copy of another front's response.

    Attributes:
        id: `resp_…`.
        status: as in `body`.
        body: the response object as JSON text.
        conversation: for the next turn; empty unless it was asked for.
        events: of a background stream, else None.
    """

    def __init__(self, peers: ResponsePeers, owner: int, response_id: str, copy: Copy) -> None:
        self._peers = peers
        self._owner = owner
        self.id = response_id
        self.status = copy.status
        self.body = copy.body
        messages = msgspec.json.decode(copy.messages, type=tuple[ChatMessage, ...])
        self.conversation = Conversation(messages, copy.size)
        self.events = RemoteEvents(peers, owner, response_id) if copy.streamed else None

    @property
    def finished(self) -> bool:
        """Nothing will change it any more."""
        return self.status not in UNFINISHED

    async def cancel(self) -> None:
        """End it there, and take over what it came to."""
        copy = await self._peers.cancel(self._owner, self.id)
        if copy is not None:
            self.status, self.body = copy.status, copy.body
