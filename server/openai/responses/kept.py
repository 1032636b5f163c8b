"""What a front needs of a stored response, whichever front keeps it."""

from collections.abc import AsyncGenerator
from typing import Protocol

from ortloom.server.openai.responses.store import Conversation


class Events(Protocol):
    """The events of a background stream."""

    def follow(self, start: int = 0) -> AsyncGenerator[bytes, None]:
        """Frames from number `start` on, as they come; ends with the response."""


class KeptResponse(Protocol):
    """One stored response."""

    @property
    def id(self) -> str:
        """`resp_…`."""

    @property
    def status(self) -> str:
        """As in `body`."""

    @property
    def body(self) -> bytes:
        """The response object as JSON text."""

    @property
    def conversation(self) -> Conversation:
        """For the next turn."""

    @property
    def events(self) -> Events | None:
        """Of a background stream, else None."""

    @property
    def finished(self) -> bool:
        """Nothing will change it any more."""

    async def cancel(self) -> None:
        """End it if it is being generated in the background, and wait for its end."""
