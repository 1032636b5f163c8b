"""Responses kept in the memory of a front: for GET, cancel and `previous_response_id`.

With several fronts each keeps what it generated, and links tell the others who has what.

Only finished responses are dropped, the least recently used first, and never the newest one. What
is counted are the bytes of a response, of its conversation as JSON, and of its events; a turn
counts the turns before it again although it shares their memory. Responses that are being generated
cannot be dropped; as long as they alone fill the store, it takes no new ones of that kind.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ortloom.server.openai.responses.owners import Owners
from ortloom.server.openai.wire_chat import ChatMessage

MAX_RESPONSES = 4096
"""Responses kept."""

MAX_BYTES = 256 * 1024 * 1024
"""Bytes kept, all responses together."""

MAX_UNFINISHED = 1024
"""Responses that are generated in the background at a time."""

UNFINISHED = frozenset({"queued", "in_progress"})


@dataclass(slots=True, frozen=True)
class Conversation:
    """Messages up to and with a response, without instructions: those hold for one turn.

    `size` is their length in bytes as JSON.
    """

    messages: tuple[ChatMessage, ...] = ()
    size: int = 0


class EventLog:
    """The events of a background stream: written once, read by any number of followers.

    The n-th frame is the event with `sequence_number` n.
    """

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._changed = asyncio.Event()
        self._closed = False
        self.size = 0

    def append(self, frames: list[bytes]) -> None:
        """Add events."""
        self._frames += frames
        self.size += sum(map(len, frames))
        self._wake()

    def close(self) -> None:
        """No more will come."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Frames from index `start` on, as they come, several at a time; ends with the log."""
        position = max(0, start)
        while True:
            changed, closed = self._changed, self._closed
            found = self._frames[position:]
            position += len(found)
            if found:
                yield b"".join(found)
            elif closed:
                return
            else:
                await changed.wait()


@dataclass(slots=True, eq=False)
class StoredResponse:
    """One response.

    Attributes:
        id: `resp_…`.
        status: as in `body`.
        body: the response object as JSON text.
        item_ids: ids of its output items.
        conversation: for the next turn.
        events: of a background stream, else None.
        task: generates it in the background; None otherwise.
    """

    id: str
    status: str
    body: bytes
    item_ids: list[str] = field(default_factory=list)
    conversation: Conversation = field(default_factory=Conversation)
    events: EventLog | None = None
    task: "asyncio.Task[None] | None" = None

    @property
    def finished(self) -> bool:
        """No task will change it any more."""
        return self.status not in UNFINISHED

    async def cancel(self) -> None:
        """End it if it is being generated in the background, and wait for its end."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])

    @property
    def size(self) -> int:
        """Bytes it is counted as."""
        events = 0 if self.events is None else self.events.size
        return len(self.body) + self.conversation.size + events


class ResponseStore:
    """All stored responses of one front.

    Args:
        max_responses: bound in number.
        max_bytes: bound in bytes.
        max_unfinished: bound of those that are being generated.
        owners: tells the other fronts what is here; None = there are none.
    """

    def __init__(
        self,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        max_unfinished: int = MAX_UNFINISHED,
        owners: Owners | None = None,
    ) -> None:
        self._links = owners
        self._max_responses = max_responses
        self._max_bytes = max_bytes
        self._max_unfinished = max_unfinished
        self._responses: OrderedDict[str, StoredResponse] = OrderedDict()
        self._sizes: dict[str, int] = {}
        self._owners: dict[str, str] = {}  # item id -> response id
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._responses)

    @property
    def size(self) -> int:
        """Bytes counted."""
        return self._bytes

    @property
    def full(self) -> bool:
        """No more can be generated in the background now."""
        unfinished = [r.id for r in self._responses.values() if not r.finished]
        size = sum(self._sizes[response_id] for response_id in unfinished)
        return len(unfinished) >= self._max_unfinished or size >= self._max_bytes

    def get(self, response_id: str) -> StoredResponse | None:
        """A response, which thereby is the most recently used one."""
        found = self._responses.get(response_id)
        if found is not None:
            self._responses.move_to_end(response_id)
        return found

    def item(self, item_id: str) -> dict[str, Any] | None:
        """An output item of a stored response."""
        owner = self.get(self._owners.get(item_id, ""))
        if owner is None:
            return None
        items: list[dict[str, Any]] = msgspec.json.decode(owner.body)["output"]
        return next((item for item in items if item["id"] == item_id), None)

    def put(self, response: StoredResponse) -> None:
        """Add a response or take over its changes; drops old ones beyond the bounds."""
        if self._responses.get(response.id) is not response:
            self._drop(response.id)
        self._responses[response.id] = response
        self._responses.move_to_end(response.id)
        if self._links is not None:
            self._links.claim(response.id)
        for item_id in response.item_ids:
            if self._links is not None and item_id not in self._owners:
                self._links.claim(item_id)
            self._owners[item_id] = response.id
        self.grown(response)

    def give_up(self, response_id: str) -> bool:
        """Forget a response; False = it is being generated and stays."""
        found = self._responses.get(response_id)
        if found is not None and not found.finished:
            return False
        self._drop(response_id)
        return True

    def grown(self, response: StoredResponse) -> None:
        """Count a stored response anew."""
        if self._responses.get(response.id) is not response:
            return
        size = response.size
        self._bytes += size - self._sizes.get(response.id, 0)
        self._sizes[response.id] = size
        self._trim(response)

    def _trim(self, newest: StoredResponse) -> None:
        if not self._beyond():
            return
        for response in list(self._responses.values()):
            if response is not newest and response.finished:
                self._drop(response.id)
                if not self._beyond():
                    return

    def _beyond(self) -> bool:
        return len(self._responses) > self._max_responses or self._bytes > self._max_bytes

    def _drop(self, response_id: str) -> None:
        response = self._responses.pop(response_id, None)
        if response is not None:
            self._bytes -= self._sizes.pop(response_id)
            for item_id in response.item_ids:
                self._owners.pop(item_id, None)
            if self._links is not None:
                for key in (response_id, *response.item_ids):
                    self._links.release(key)
