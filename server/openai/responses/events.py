"""Events of a response as they go over the wire."""

from typing import Any

import msgspec

Event = dict[str, Any]
"""An event without its number: `type` and the members of that type."""


class EventNumbers:
    """Numbers events from 0 on and writes them."""

    def __init__(self) -> None:
        self._next = 0

    def frames(self, events: list[Event]) -> list[bytes]:
        """Each event as `event: TYPE` and `data: JSON`."""
        written = []
        for event in events:
            body = msgspec.json.encode({**event, "sequence_number": self._next})
            self._next += 1
            written.append(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), body))
        return written


def lifecycle(name: str, response: dict[str, Any]) -> Event:
    """`response.NAME`: an event that carries the response."""
    return {"type": f"response.{name}", "response": response}
