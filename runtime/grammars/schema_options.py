"""What a request and the server add to a JSON schema before it is compiled."""

from dataclasses import dataclass
from typing import Any

_HINTS = "x-guidance"


@dataclass(frozen=True, slots=True)
class SchemaOptions:
    """`any_whitespace`: blanks and line breaks wherever JSON allows them. `whitespace_pattern`: a
    regular expression of what may stand there instead. `additional_properties` False: an object
    that lists properties and does not speak of further ones may have no others.
    """

    any_whitespace: bool = True
    whitespace_pattern: str | None = None
    additional_properties: bool = True

    def guidance(self) -> dict[str, object]:
        """As options of llguidance."""
        made: dict[str, object] = {
            "whitespace_flexible": self.any_whitespace,
            "coerce_one_of": True,  # oneOf as anyOf: exclusion cannot be seen token by token
        }
        if self.whitespace_pattern is not None:
            made["whitespace_pattern"] = self.whitespace_pattern
        return made

    def schema(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """A schema with the options that it can say itself."""
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        return schema if self.additional_properties else closed(schema)

    def inline(self, schema: dict[str, Any] | bool) -> dict[str, Any]:
        """A schema that carries all options."""
        return {**self.schema(schema), _HINTS: self.guidance()}


_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "required", "type"})


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """A copy of a schema in which no object that lists its properties may have others."""
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _VALUES:
            made[key] = value
        elif key in _MAPS and isinstance(value, dict):
            made[key] = {name: _closed(inner) for name, inner in value.items()}
        else:
            made[key] = _closed(value)
    lists = isinstance(schema.get("properties"), dict)
    lists |= isinstance(schema.get("patternProperties"), dict)
    if lists:
        made.setdefault("additionalProperties", False)
    return made


def _closed(value: Any) -> Any:
    if isinstance(value, dict):
        return closed(value)
    if isinstance(value, list):
        return [_closed(item) for item in value]
    return value
