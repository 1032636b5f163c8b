"""What a request body must be before any handler sees it: JSON by name, JSON by content, bounded.

`decode_json` turns every way a body can be wrong into a `SchemaViolation` whose `param` is the
location in it (`body.messages.0.role`), the form vLLM answers with. As there, a number may be
written as text ("0.5"), a whole number as 4.0, a boolean as "true" or 1.
"""

import re
from typing import TypeVar

import msgspec
from sanic import Request

from ortloom.errors import SchemaViolation

T = TypeVar("T")

_AT_PATH = re.compile(r" - at `([^`]*)`$")
_AT_BYTE = re.compile(r" ?\(byte (\d+)\)$")
_MISSING = re.compile(r"^Object missing required field `([^`]+)`")


def decode_json(body: bytes, kind: type[T]) -> T:
    """Decode a body into a msgspec Struct (or any type msgspec knows).

    Raises:
        SchemaViolation: not JSON, not UTF-8, nested too deeply, or a field that does not fit.
    """
    try:
        if not body.isascii():
            body.decode()  # msgspec does not look at the bytes of members it leaves out
        return msgspec.json.decode(body, type=kind, strict=False)
    except msgspec.ValidationError as error:
        raise _violation(str(error)) from None
    except msgspec.DecodeError as error:
        raise _malformed(str(error), len(body)) from None
    except UnicodeDecodeError as error:
        raise SchemaViolation("The body is not valid UTF-8.", f"body.{error.start}") from None
    except RecursionError:
        raise SchemaViolation("The body is nested too deeply.", "body") from None


def convert_json(value: object, kind: type[T], location: str) -> T:
    """Convert a part of a body that was decoded without a type.

    Args:
        value: the part.
        kind: what it should be.
        location: where in the body it is (`body.tools.0`).

    Raises:
        SchemaViolation: it does not fit; `param` is the place inside it.
    """
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise _violation(str(error), location) from None


def read_json(request: Request, kind: type[T]) -> T:
    """The body of a request, decoded.

    Raises:
        SchemaViolation: as `decode_json`, or the content type is not JSON.
    """
    check_content_type(request)
    return decode_json(request.body, kind)


def check_content_type(request: Request) -> None:
    """Refuse bodies that do not say they are JSON.

    Raises:
        SchemaViolation: the content type is missing or another one.
    """
    value = request.headers.getone("content-type", "")
    media_type = value.partition(";")[0].strip().lower()
    subtype = media_type.partition("/")[2]
    if media_type != "application/json" and not (
        media_type.startswith("application/") and subtype.endswith("+json")
    ):
        raise SchemaViolation("Unsupported Media Type: only 'application/json' is allowed.")


def _violation(text: str, start: str = "body") -> SchemaViolation:
    path = ""
    if match := _AT_PATH.search(text):
        path = match[1]
        text = text[: match.start()]
    location = start + _dotted(path)
    if match := _MISSING.match(text):
        location += f".{match[1]}"
        text = "Field required"
    return SchemaViolation(f"1 validation error: {text} at '{location}'.", location)


def _dotted(path: str) -> str:
    """`$.messages[2].role` as `.messages.2.role`; positions msgspec does not tell are left out."""
    path = path.removeprefix("$").replace("[...]", "")
    return re.sub(r"\[(\d+)\]", r".\1", path)


def _malformed(text: str, size: int) -> SchemaViolation:
    if match := _AT_BYTE.search(text):
        reason = text[: match.start()].removeprefix("JSON is malformed: ")
        return SchemaViolation(f"The body is not valid JSON: {reason}.", f"body.{match[1]}")
    if "truncated" in text:
        return SchemaViolation("The body is not valid JSON: it ends too early.", f"body.{size}")
    return SchemaViolation(f"The body is not valid JSON: {text}.", "body")
