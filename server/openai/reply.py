"""What replies of completions and chat have in common."""

import time
from typing import Any

import msgspec
from sanic import HTTPResponse

from ortloom import __version__
from ortloom.server.context import FrontContext
from ortloom.server.openai.wire_common import GenerationRequest


def fingerprint(front: FrontContext) -> str | None:
    """What `system_fingerprint` says, by --fingerprint-mode."""
    short = front.manifest.artefact_id[:8]
    match front.config.front.fingerprint_mode:
        case "none":
            return None
        case "custom":
            return front.config.front.fingerprint_value
        case "hash":
            return short
    return f"ortloom-{__version__}-{short}"


class ReplyHead:
    """Members every reply and chunk begins with; made once a request.

    Args:
        response_id: the id the client sees.
        kind: the `object` member.
        front: names the model and the bundle.
    """

    def __init__(self, response_id: str, kind: str, front: FrontContext) -> None:
        self.fingerprint = fingerprint(front)
        self.members: dict[str, Any] = {
            "id": response_id,
            "object": kind,
            "created": int(time.time()),
            "model": front.served_names[0],
        }


class StreamUsage:
    """Which chunks of a stream carry usage.

    Attributes:
        last: one chunk without choices at the end.
        every: each chunk; `--enable-force-include-usage` asks for that too.
    """

    def __init__(self, body: GenerationRequest, force: bool) -> None:
        options = body.stream_options
        self.last = force or bool(options is not None and options.include_usage)
        asked = bool(options is not None and options.continuous_usage_stats)
        self.every = force or (self.last and asked)


def json_response(body: dict[str, Any]) -> HTTPResponse:
    """A 200 with a JSON body."""
    return HTTPResponse(msgspec.json.encode(body), 200, content_type="application/json")
