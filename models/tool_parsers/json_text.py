"""Values to JSON text and back, safe for anything a model writes."""

import json
from typing import Any


def json_text(value: Any) -> str:
    """JSON text of `value`, non-ASCII characters as they are (lone surrogates are escaped)."""
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isascii() or text.isprintable() or _encodable(text) else json.dumps(value)


def string_body(text: str) -> str:
    """`text` as it stands between the quotes of a JSON string."""
    return json_text(text)[1:-1]


def loads(text: str) -> Any:
    """The value of JSON text.

    Raises:
        ValueError: it is no JSON, or nested too deeply, or holds a number too long to read.
    """
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def object_or_none(text: str) -> dict[str, Any] | None:
    """The object that `text` is the JSON of, or None."""
    try:
        value = loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def whole_characters(text: str) -> str:
    """`text` with lone surrogates replaced, so that it can be sent as UTF-8."""
    if _encodable(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")
