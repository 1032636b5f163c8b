"""Routes of VLLM_SERVER_DEV_MODE=1: pausing, aborting, sleeping, and what one engine cannot do."""

from typing import Any, NoReturn

import msgspec
from sanic import HTTPResponse, Request
from sanic.response import json

from ortloom.errors import InvalidRequest, NotImplementedHere, SchemaViolation
from ortloom.runtime.messages import EngineControl
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of
from ortloom.server.engine_control import choice, control, switch
from ortloom.server.limits import decode_json, read_json

blueprint = Blueprint("dev")

MODES = ("abort", "wait", "keep")
TAGS = ("weights", "kv_cache", "scheduling")

WEIGHT_ROUTES = (
    "init_weight_transfer_engine",
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
    "update_weight_version",
)


class AbortBody(msgspec.Struct):
    """Which requests to end; none = all."""

    request_ids: list[str] | None = None


class RpcBody(msgspec.Struct):
    """A call of a method on all workers."""

    method: str | None = None
    args: list[Any] | None = None
    kwargs: dict[str, Any] | None = None
    timeout: float | None = None


async def pause(request: Request) -> HTTPResponse:
    """Hold all steps; `mode` says what becomes of running requests."""
    mode: Any = choice(request, "mode", "abort", MODES)
    clear = switch(request, "clear_cache", True)
    call = EngineControl(0, "pause", mode=mode, clear_cache=clear)
    await control(context_of(request), call)
    return json({"status": "paused"})


async def resume(request: Request) -> HTTPResponse:
    """Go on after a pause."""
    await control(context_of(request), EngineControl(0, "resume"))
    return json({"status": "resumed"})


async def is_paused(request: Request) -> HTTPResponse:
    """Whether steps are held by a pause."""
    return json({"is_paused": await _state(request, "paused")})


async def is_sleeping(request: Request) -> HTTPResponse:
    """Whether the engine was put to sleep."""
    return json({"is_sleeping": await _state(request, "sleeping")})


async def _state(request: Request, name: str) -> bool:
    state = await control(context_of(request), EngineControl(0, "state"))
    return state.get(name) == "1"


async def abort_requests(request: Request) -> HTTPResponse:
    """End requests by the ids their clients know, or all."""
    body = decode_json(request.body, AbortBody) if request.body else AbortBody()
    call = EngineControl(0, "abort", request_ids=body.request_ids or [])
    info = await control(context_of(request), call)
    return json({"status": "aborted", "aborted": int(info.get("aborted", "0"))})


async def sleep(request: Request) -> HTTPResponse:
    """Give memory back: level 0 only pauses, 1 frees weights and KV cache, 2 also cached files."""
    front = context_of(request)
    _check_sleep_mode(front)
    level = choice(request, "level", "1", ("0", "1", "2"))
    mode: Any = choice(request, "mode", "abort", MODES)
    await control(front, EngineControl(0, "sleep", mode=mode, level=int(level)))
    return _empty()


async def wake_up(request: Request) -> HTTPResponse:
    """Take memory again; `tags` names the parts, none = all."""
    front = context_of(request)
    _check_sleep_mode(front)
    tags = request.args.getlist("tags", [])
    for tag in tags:
        if tag not in TAGS:
            raise InvalidRequest(f"tags must be among {', '.join(TAGS)}, got '{tag}'.", "tags")
    await control(front, EngineControl(0, "wake_up", tags=list(tags)))
    return _empty()


async def release_kv_cache_memory(request: Request) -> HTTPResponse:
    """Give the KV cache back; /wake_up takes it again."""
    front = context_of(request)
    _check_sleep_mode(front)
    await control(front, EngineControl(0, "release_kv_cache"))
    return _empty()


def _check_sleep_mode(front: FrontContext) -> None:
    if not front.config.model.enable_sleep_mode:
        raise InvalidRequest("This route needs a server that was started with --enable-sleep-mode.")


async def reset_media_cache(request: Request) -> HTTPResponse:
    """Forget processed media; a text model keeps none."""
    return _empty()


async def collective_rpc(request: Request) -> HTTPResponse:
    """Refused: there are no workers to call."""
    body = read_json(request, RpcBody)
    if not body.method:
        raise SchemaViolation("1 validation error: method is required.", "body.method")
    raise NotImplementedHere("One engine process computes everything: there are no workers.")


async def get_world_size(request: Request) -> HTTPResponse:
    """How many devices share the model: one."""
    return json({"world_size": 1})


async def weights(request: Request) -> NoReturn:
    """Refused: weights are those of the bundle while the server runs."""
    raise NotImplementedHere("Weights cannot be changed while the server runs.")


def _empty() -> HTTPResponse:
    return HTTPResponse(None, 200)


for handler, path, method in (
    (pause, "/pause", "POST"),
    (resume, "/resume", "POST"),
    (is_paused, "/is_paused", "GET"),
    (is_sleeping, "/is_sleeping", "GET"),
    (abort_requests, "/abort_requests", "POST"),
    (sleep, "/sleep", "POST"),
    (wake_up, "/wake_up", "POST"),
    (release_kv_cache_memory, "/release_kv_cache_memory", "POST"),
    (collective_rpc, "/collective_rpc", "POST"),
    (get_world_size, "/get_world_size", "GET"),
):
    blueprint.add_route(handler, path, methods=[method])
for name in ("reset_mm_cache", "reset_encoder_cache"):
    blueprint.add_route(reset_media_cache, f"/{name}", name=name, methods=["POST"])
for name in WEIGHT_ROUTES:
    blueprint.add_route(weights, f"/{name}", name=name, methods=["POST"])
blueprint.add_route(weights, "/weight_info", name="weight_info", methods=["GET"])
