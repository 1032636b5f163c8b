"""An event of a stream as bytes with holes: most events of a stream differ in little."""

import uuid
from typing import Any

import msgspec

to_json = msgspec.json.Encoder().encode
"""A value as JSON bytes."""

HOLE = f"hole-{uuid.uuid4().hex}"
"""Stands in an event for a value that differs."""

_HOLE = to_json(HOLE)


def event_template(event: dict[str, Any]) -> bytes:
    """JSON with holes: `template % values` is the event with the JSON of a value in each hole.

    Args:
        event: with `HOLE` in place of values, none of them in a key.
    """
    return to_json(event).replace(b"%", b"%%").replace(_HOLE, b"%b")
