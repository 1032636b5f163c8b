"""The routes of --enable-scale-out where the server was started without it: all of them say so."""

from typing import NoReturn

from sanic import Request

from ortloom.errors import PermissionDenied
from ortloom.server.blueprint import Blueprint

blueprint = Blueprint("scale_out_off")

PATHS = (
    "/inference/v1/generate",
    "/v1/completions/render",
    "/v1/chat/completions/render",
    "/v1/completions/derender",
    "/v1/chat/completions/derender",
    "/v1/messages/render",
    "/v1/responses/render",
)


async def forbidden(request: Request) -> NoReturn:
    """Refused: the server was started without --enable-scale-out."""
    raise PermissionDenied("This route needs a server that was started with --enable-scale-out.")


for number, path in enumerate(PATHS):
    blueprint.add_route(forbidden, path, name=f"forbidden_{number}", methods=["POST"])
