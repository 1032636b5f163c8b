"""Whether a front takes a request at all, before its body is read."""

from sanic import Request

from ortloom.errors import ServerDraining
from ortloom.server.auth import authenticate, is_public
from ortloom.server.context import FrontContext


def admit(request: Request, front: FrontContext) -> None:
    """Check draining and the API key.

    Raises:
        ServerDraining: the front is shutting down; /health answers that itself.
        AuthenticationFailed: the key is missing or wrong.
    """
    authenticate(request, front.config.front.api_keys)
    if front.draining and not is_public(request.path):
        raise ServerDraining("The server is shutting down.")
