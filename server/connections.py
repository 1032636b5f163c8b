"""All client connections of one front, with an upper bound."""

import resource
from typing import Protocol

_RESERVED_FILES = 128
_MOST_CONNECTIONS = 16_384


class Connection(Protocol):
    """What the registry needs of `LoomProtocol`."""

    @property
    def idle(self) -> bool:
        """True between requests."""

    def stop_keep_alive(self) -> None:
        """Let the request in progress be the last one."""

    def close(self) -> None:
        """Close after what is written has gone out."""

    def abort(self) -> None:
        """Close at once."""


def most_connections() -> int:
    """As many as there are file descriptors for, some kept back for ourselves."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return _MOST_CONNECTIONS
    return max(1, min(_MOST_CONNECTIONS, soft - _RESERVED_FILES))


class ConnectionRegistry:
    """Live connections; `add` refuses above the bound and once the front is closing.

    Args:
        limit: most connections at a time.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = most_connections() if limit is None else limit
        self._connections: set[Connection] = set()
        self._closing = False

    def __len__(self) -> int:
        return len(self._connections)

    def add(self, connection: Connection) -> bool:
        """False when the connection must be turned away."""
        if self._closing or len(self._connections) >= self._limit:
            return False
        self._connections.add(connection)
        return True

    def discard(self, connection: Connection) -> None:
        """The connection is gone."""
        self._connections.discard(connection)

    def stop_keep_alive(self) -> None:
        """No connection takes another request."""
        for connection in self._connections:
            connection.stop_keep_alive()

    def close_idle(self) -> None:
        """Close the connections that have no request."""
        for connection in list(self._connections):
            if connection.idle:
                connection.close()

    def abort_all(self) -> None:
        """Close everything at once and take no more."""
        self._closing = True
        for connection in list(self._connections):
            connection.abort()
