"""API keys.

With keys set, every route but the public ones needs `Authorization: Bearer <key>`. The key never
appears in an error or a log line.
"""

import hmac
from collections.abc import Sequence

from sanic import Request

from ortloom.errors import AuthenticationFailed

PUBLIC_PATHS = frozenset({"/health", "/ping", "/version", "/metrics"})


def authenticate(request: Request, api_keys: Sequence[str]) -> None:
    """Check the key of a request.

    Raises:
        AuthenticationFailed: no key, another scheme, or a wrong key.
    """
    if not api_keys or request.method == "OPTIONS" or is_public(request.path):
        return
    given = request.headers.getall("authorization", [])
    if len(given) != 1 or not _accepted(given[0], api_keys):
        raise AuthenticationFailed("Unauthorized")


def is_public(path: str) -> bool:
    """True for paths that never need a key."""
    path = path.rstrip("/")
    return path in PUBLIC_PATHS or path.startswith("/metrics/")


def _accepted(header: str, api_keys: Sequence[str]) -> bool:
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer":
        return False
    given = token.strip().encode("utf-8", "surrogateescape")
    found = False
    for key in api_keys:  # all of them, so that the time tells nothing
        found |= hmac.compare_digest(given, key.encode())
    return found
