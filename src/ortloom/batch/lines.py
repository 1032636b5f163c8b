"""Lines of a batch: requests in, results out."""

import uuid
from typing import Any, Literal

import msgspec

from ortloom.errors import OrtloomError

GENERATION = ("/v1/chat/completions", "/v1/completions")
"""What is done here. Other servers of the format have no completions."""

KNOWN = ("/v1/embeddings", "/v1/audio/transcriptions", "/v1/audio/translations")
KNOWN_ENDINGS = ("/score", "/rerank")


class BatchFailed(OrtloomError):
    """The batch cannot be run, or its results cannot be kept."""


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the input."""

    custom_id: str
    method: Literal["POST"]
    url: str
    body: dict[str, Any]


def parse_lines(text: str) -> list[BatchRequest]:
    """All requests of an input; blank lines are skipped.

    Raises:
        BatchFailed: a line is no JSON object with the four members; its number is named.
    """
    decode = msgspec.json.Decoder(BatchRequest).decode
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(decode(line))
        except (msgspec.DecodeError, RecursionError) as error:
            raise BatchFailed(f"line {number} of the input cannot be used: {error}") from None
    return found


def refusal(request: BatchRequest) -> str | None:
    """Why a request is not sent at all, or None."""
    if request.url in GENERATION:
        if request.body.get("stream"):
            return "requests of a batch must not be sent in stream mode"
        return None
    if request.url in KNOWN or request.url.endswith(KNOWN_ENDINGS):
        return f"the model cannot do what {request.url} asks for: it generates text"
    supported = ", ".join([*GENERATION, *KNOWN, *(f"…{end}" for end in KNOWN_ENDINGS)])
    return f"the URL {request.url} is not supported; supported are: {supported}"


def result_line(
    request: BatchRequest, status: int, body: object | None, error: object | None
) -> bytes:
    """One line of the output, without its end.

    Args:
        request: which it answers.
        status: of the HTTP reply, or 400 where none was asked for.
        body: the reply; None = a failure.
        error: what went wrong: a text, or an error object.
    """
    return msgspec.json.encode(
        {
            "id": f"vllm-{uuid.uuid4().hex}",
            "custom_id": request.custom_id,
            "response": {
                "status_code": status,
                "request_id": f"vllm-batch-{uuid.uuid4().hex}",
                "body": body,
            },
            "error": error,
        }
    )
