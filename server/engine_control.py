"""Control calls of routes to the engine."""

from sanic import Request

from ortloom.errors import EngineDead, InvalidRequest
from ortloom.runtime.messages import EngineControl
from ortloom.server.context import FrontContext

TRUE = ("1", "true", "yes", "on")
FALSE = ("0", "false", "no", "off")


async def control(front: FrontContext, call: EngineControl) -> dict[str, str]:
    """Make a call; what the engine says of itself after it.

    Raises:
        EngineDead: the engine is gone.
        RequestFailed: it could not be done.
    """
    if front.client.dead is not None:
        raise EngineDead("The engine is not running.")
    return await front.client.control(call)


def choice(request: Request, name: str, default: str, choices: tuple[str, ...]) -> str:
    """A parameter of the query that is one of a few words.

    Raises:
        InvalidRequest: it is another one.
    """
    value: str = request.args.get(name, default)
    if value not in choices:
        raise InvalidRequest(f"{name} must be one of {', '.join(choices)}, got '{value}'.", name)
    return value


def switch(request: Request, name: str, default: bool) -> bool:
    """A parameter of the query that is true or false.

    Raises:
        InvalidRequest: it is neither.
    """
    value: str = request.args.get(name, str(default)).lower()
    if value not in TRUE + FALSE:
        raise InvalidRequest(f"{name} must be true or false, got '{value}'.", name)
    return value in TRUE
