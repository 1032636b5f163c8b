"""The id a client gives its request, as far as it can be repeated to others."""

from sanic import Request

LONGEST_REQUEST_ID = 256
"""Characters; an id is repeated in every event of a stream and in log lines."""


def given_request_id(request: Request) -> str | None:
    """The X-Request-Id header if it is usable: printable ASCII of at most LONGEST_REQUEST_ID."""
    header: str = request.headers.getone("x-request-id", "")
    usable = header.isascii() and header.isprintable() and len(header) <= LONGEST_REQUEST_ID
    return header if header and usable else None
