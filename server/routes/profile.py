"""POST /start_profile and /stop_profile, with --profiler-config."""

from sanic import HTTPResponse, Request

from ortloom.runtime.messages import EngineControl
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.engine_control import control

blueprint = Blueprint("profile")


async def start_profile(request: Request) -> HTTPResponse:
    """Begin to profile the engine."""
    await control(context_of(request), EngineControl(0, "start_profile"))
    return HTTPResponse(None, 200)


async def stop_profile(request: Request) -> HTTPResponse:
    """End the profile and write its file."""
    await control(context_of(request), EngineControl(0, "stop_profile"))
    return HTTPResponse(None, 200)


blueprint.add_route(start_profile, "/start_profile", methods=["POST"])
blueprint.add_route(stop_profile, "/stop_profile", methods=["POST"])
