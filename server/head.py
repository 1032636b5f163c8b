"""Checks of a raw request head, stricter than Sanic's parser.

Sanic accepts a blank before the colon, folded lines, control characters, a missing Host and any
number of fields; behind a lenient proxy the first two are smuggling hazards (RFC 9112 §5.1, §5.2,
§3.2). These checks run on the complete head before Sanic parses it.
"""

import re

import httptools
from sanic.exceptions import SanicException

MAX_TARGET = 8 * 1024
"""Bytes of the request target (URL)."""

MAX_CHUNK_LINE = 1024
"""Bytes of a chunk's size line, extensions included."""

_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_REQUEST_LINE = re.compile(_TOKEN + rb" ([\x21-\x7e]+) HTTP/1\.([01])")
_FIELD = re.compile(rb"(" + _TOKEN + rb"):[ \t]*([\t\x20-\x7e\x80-\xff]*)")
_DIGITS = re.compile(rb"[0-9]+")


class HeadRejected(SanicException):  # type: ignore[misc]
    """The head breaks a rule; answered with `status_code`, then the connection is closed."""

    quiet = True


def too_large(buffer: bytes | bytearray) -> HeadRejected:
    """The error for a head that is longer than the limit."""
    if buffer.find(b"\r\n", 0, MAX_TARGET + 64) < 0:
        return HeadRejected("The request target is too long.", status_code=414)
    return HeadRejected("The request head is too large.", status_code=431)


def check_head(head: bytes, max_fields: int, max_size: int) -> None:
    """Check request line and fields (without the empty line at the end).

    Args:
        head: the bytes.
        max_fields: most fields.
        max_size: most bytes.

    Raises:
        HeadRejected: 414 for a long target, 431 for size or number of fields, else 400.
    """
    line, *fields = head.split(b"\r\n")
    match = _REQUEST_LINE.fullmatch(line)
    if match is None:
        raise HeadRejected("The request line is malformed.", status_code=400)
    if len(match[1]) > MAX_TARGET:
        raise HeadRejected("The request target is too long.", status_code=414)
    try:
        httptools.parse_url(match[1])
    except httptools.HttpParserInvalidURLError:
        raise HeadRejected("The request target is malformed.", status_code=400) from None
    if len(head) > max_size:
        raise HeadRejected("The request head is too large.", status_code=431)
    if len(fields) > max_fields:
        raise HeadRejected(
            f"The request has more than {max_fields} header fields.", status_code=431
        )
    hosts = 0
    for field in fields:
        parsed = _FIELD.fullmatch(field)
        if parsed is None:
            raise HeadRejected("A header field is malformed.", status_code=400)
        name = parsed[1].lower()
        if name == b"host":
            hosts += 1
        elif name == b"content-length" and _DIGITS.fullmatch(parsed[2].rstrip()) is None:
            raise HeadRejected("Content-Length is not a number.", status_code=400)
    if hosts > 1 or (hosts == 0 and match[2] == b"1"):
        raise HeadRejected("Exactly one Host header field is needed.", status_code=400)


_CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,16}[ \t]*(;[\t\x20-\x7e\x80-\xff]*)?")


def chunk_size_fits(buffer: bytearray) -> bool | None:
    """Whether a line end and a chunk's size line, as RFC 9112 §7.1 writes them, are at the start of
    a buffer; None while that cannot be told.

    Sanic skips two bytes whatever they are, and takes every number Python would.
    """
    if not b"\r\n".startswith(bytes(buffer[:2])):
        return False
    end = buffer.find(b"\r\n", 2)
    return None if end < 0 else _CHUNK_SIZE.fullmatch(buffer, 2, end) is not None


def strip_root_path(buffer: bytearray, root_path: bytes) -> None:
    """Remove the path under which a proxy publishes the server from the request target."""
    start = buffer.find(b" ") + 1
    if root_path and buffer.startswith(root_path, start):
        end = start + len(root_path)
        if buffer[end : end + 1] == b"/":
            del buffer[start:end]
