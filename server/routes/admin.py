"""Operator routes: what the server runs with, and emptying the prefix cache."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

import msgspec
from sanic import HTTPResponse, Request

from ortloom import __version__
from ortloom.config import Config
from ortloom.errors import EngineDead, InvalidRequest
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import FrontContext, context_of
from ortloom.server.engine_control import switch

blueprint = Blueprint("admin")

_PACKAGES = ("onnxruntime", "onnxruntime-gpu", "sanic", "msgspec", "pyzmq", "tokenizers", "numpy")
_ENV_PREFIXES = ("ORTLOOM_", "VLLM_", "VT_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD")
_HIDDEN = "***"


def visible_config(config: Config) -> dict[str, object]:
    """The configuration tree without its secrets."""
    tree: dict[str, dict[str, object]] = msgspec.to_builtins(config)
    keys = tree["front"]["api_keys"]
    tree["front"]["api_keys"] = [_HIDDEN for _ in keys] if isinstance(keys, list | tuple) else []
    return dict(tree)


def visible_environment() -> dict[str, str]:
    """Our environment variables; the values of secret ones are hidden."""
    return {
        name: _HIDDEN if any(word in name.upper() for word in _SECRET_WORDS) else value
        for name, value in sorted(os.environ.items())
        if name.startswith(_ENV_PREFIXES)
    }


def _system() -> dict[str, str]:
    found = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "ortloom": __version__,
    }
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _engine(front: FrontContext) -> dict[str, object]:
    ready = front.client.ready
    return {} if ready is None else dict(msgspec.to_builtins(ready))


async def server_info(request: Request) -> HTTPResponse:
    """Configuration, environment and system; `config_format` text (default) or json."""
    front = context_of(request)
    form = request.args.get("config_format", "text")
    if form not in ("text", "json"):
        raise InvalidRequest("config_format must be 'text' or 'json'.", "config_format")
    config = visible_config(front.config)
    body = {
        "vllm_config": config if form == "json" else msgspec.json.encode(config).decode(),
        "vllm_env": visible_environment(),
        "system_env": _system(),
        "engine": _engine(front),
    }
    return HTTPResponse(msgspec.json.encode(body), content_type="application/json")


async def reset_prefix_cache(request: Request) -> HTTPResponse:
    """Forget cached prefixes; `success` is false while any block is in use."""
    client = context_of(request).client
    if client.dead is not None:
        raise EngineDead("The engine is not running.")
    running = switch(request, "reset_running_requests", False)
    switch(request, "reset_external", False)  # there is no cache elsewhere to reset
    success = await client.reset_prefix_cache(running)
    body = msgspec.json.encode({"success": success})
    return HTTPResponse(body, content_type="application/json")


blueprint.add_route(server_info, "/server_info", methods=["GET"])
blueprint.add_route(reset_prefix_cache, "/reset_prefix_cache", methods=["POST"])
