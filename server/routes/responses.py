"""POST /v1/responses, GET /v1/responses/{id} and POST /v1/responses/{id}/cancel."""

from sanic import HTTPResponse, Request

from ortloom.errors import ResponseRefused, SchemaViolation
from ortloom.server.blueprint import Blueprint
from ortloom.server.context import context_of
from ortloom.server.limits import read_json
from ortloom.server.openai.responses import background, run
from ortloom.server.openai.responses.find import find_response
from ortloom.server.openai.responses.kept import KeptResponse
from ortloom.server.openai.responses.prepare import prepare
from ortloom.server.openai.responses.wire import ResponsesRequest

blueprint = Blueprint("responses", url_prefix="/v1/responses")

_TRUE = frozenset({"true", "1", "t", "yes", "y", "on"})
_FALSE = frozenset({"false", "0", "f", "no", "n", "off", ""})


async def create_response(request: Request) -> HTTPResponse | None:
    """Generate a response: at once, as a stream, or in the background."""
    body = read_json(request, ResponsesRequest)
    call = await prepare(body, request, context_of(request))
    if body.background:
        record = await background.start(call, request)
        if record.events is None:
            return _json(record)
        await run.follow(record.events, 0, request)
        return None
    if body.stream:
        await run.stream(call, request)
        return None
    return await run.answer(call)


async def retrieve_response(request: Request, response_id: str) -> HTTPResponse | None:
    """A stored response, or its events after a number."""
    streamed, after = _streamed(request), _starting_after(request)
    record = await find_response(response_id, context_of(request))
    if not streamed:
        return _json(record)
    if record.events is None:
        raise ResponseRefused(
            "Only responses made with background and stream can be streamed again.", "response_id"
        )
    await run.follow(record.events, after + 1, request)
    return None


async def cancel_response(request: Request, response_id: str) -> HTTPResponse:
    """End a response that is being generated in the background."""
    record = await find_response(response_id, context_of(request))
    if record.finished:
        raise ResponseRefused(
            f"Only a queued or running background response can be cancelled; this one is "
            f"{record.status}.",
            "response_id",
        )
    await record.cancel()
    return _json(record)


def _json(record: KeptResponse) -> HTTPResponse:
    return HTTPResponse(record.body, 200, content_type="application/json")


def _streamed(request: Request) -> bool:
    value: str = request.args.get("stream", "").lower()
    if value not in _TRUE | _FALSE:
        raise SchemaViolation("1 validation error: stream must be a boolean.", "query.stream")
    return value in _TRUE


def _starting_after(request: Request) -> int:
    """The number of the last event the client has; -1 = none."""
    value: str = request.args.get("starting_after", "")
    if value == "":
        return -1
    if not (value.isascii() and value.isdecimal() and len(value) <= 18):
        raise SchemaViolation(
            "1 validation error: starting_after must be an integer, at least 0.",
            "query.starting_after",
        )
    return int(value)


blueprint.add_route(create_response, "", methods=["POST"])
blueprint.add_route(retrieve_response, "/<response_id:str>", methods=["GET"])
blueprint.add_route(cancel_response, "/<response_id:str>/cancel", methods=["POST"])
