"""An event of a stream as bytes with holes: most events of a stream differ in little."""

import uuid
from typing import Any

import msgspec

to_json = msgspec.json.Encoder().encode
"""A value as JSON bytes."""

HOLE = f"hole-{uuid.uuid4().hex}"
"""Stands in an event for a value that differs."""

_HOLE = to_json(HOLE)


class EventTemplate:
    """JSON with holes.

    Args:
        event: with `HOLE` in place of values; none in a key.
    """

    def __init__(self, event: dict[str, Any]) -> None:
        self._form = to_json(event).replace(b"%", b"%%").replace(_HOLE, b"%b")

    def fill(self, *values: bytes) -> bytes:
        """The event, with the JSON of a value for each hole, in order."""
        return self._form % values
