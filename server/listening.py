"""The listening socket: bound once by the supervisor, inherited by every front."""

import contextlib
import errno
import os
import socket
import stat

from ortloom.config import FrontConfig
from ortloom.errors import OrtloomError

_BACKLOG = 2048


class CannotListen(OrtloomError):
    """The address is in use or not ours to take."""


def bind(front: FrontConfig) -> socket.socket:
    """Bind and listen, so that clients can connect from now on.

    Raises:
        CannotListen: one line that says which address and why.
    """
    try:
        return _bind_unix(front.uds) if front.uds is not None else _bind_tcp(front)
    except OSError as error:
        where = front.uds if front.uds is not None else f"{front.host}:{front.port}"
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = "the address is in use by another process"
        raise CannotListen(f"cannot listen on {where}: {reason}") from None
    except UnicodeError:
        raise CannotListen(f"cannot listen on '{front.host}': it is no host name") from None


def _bind_tcp(front: FrontConfig) -> socket.socket:
    found = socket.getaddrinfo(
        front.host or None,
        front.port,
        type=socket.SOCK_STREAM,
        flags=socket.AI_PASSIVE,
    )
    family, kind, proto, _, address = found[0]
    listener = socket.socket(family, kind, proto)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_unix(path: str) -> socket.socket:
    """Replace a stale socket file; a live one, or another kind of file, is left alone."""
    if not path:
        raise OSError(errno.EINVAL, "a unix socket needs a path")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(errno.EEXIST, "a file that is no socket is in the way")
        if _answers(path):
            raise OSError(errno.EADDRINUSE, "in use")
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o077)
    try:
        listener.bind(path)
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.umask(mask)
    return listener


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def url_of(listener: socket.socket, *, tls: bool = False) -> str | None:
    """Base address under which this machine reaches the server; None for a unix socket."""
    if listener.family == socket.AF_UNIX:
        return None
    host, port = listener.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
