"""Constraints on the output's form: `response_format` and `structured_outputs`."""

import json

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.server.openai.wire_common import ResponseFormat, StructuredOutputs


def constraint_of(
    response_format: ResponseFormat | None, structured: StructuredOutputs | None
) -> StructuredOutput | None:
    """The one constraint of a request, or None.

    Raises:
        InvalidRequest: none or several constraints inside `structured_outputs`, both members
            given, or a constraint without content.
    """
    first = _from_format(response_format) if response_format is not None else None
    second = _from_structured(structured) if structured is not None else None
    if first is not None and second is not None:
        raise InvalidRequest(
            "response_format and structured_outputs cannot both constrain the output.",
            "structured_outputs",
        )
    return first or second


def _from_format(given: ResponseFormat) -> StructuredOutput | None:
    if given.type == "text":
        return None
    if given.type == "json_object":
        return StructuredOutput(kind="json_object")
    if given.type == "json_schema":
        if given.json_schema is None or given.json_schema.schema is None:
            raise InvalidRequest(
                "response_format of type json_schema needs json_schema.schema.", "response_format"
            )
        schema = _schema_text(given.json_schema.schema, "response_format", "json_schema")
        return StructuredOutput(kind="json", value=schema)
    if given.type == "structural_tag":
        tag = {"format": given.format}
        if given.format is None:
            tag = {"structures": given.structures, "triggers": given.triggers}
        return StructuredOutput(kind="structural_tag", value=_json_text(tag, "response_format"))
    raise InvalidRequest(
        f"response_format.type '{given.type}' is unknown; it is one of text, json_object, "
        "json_schema, structural_tag.",
        "response_format",
    )


def _from_structured(given: StructuredOutputs) -> StructuredOutput:
    name = "structured_outputs"
    found: list[StructuredOutput] = []
    if given.json is not None:
        found.append(StructuredOutput(kind="json", value=_schema_text(given.json, name, "json")))
    if given.json_object:
        found.append(StructuredOutput(kind="json_object"))
    if given.regex is not None:
        found.append(StructuredOutput(kind="regex", value=given.regex))
    if given.choice is not None:
        if not given.choice or not all(given.choice):
            raise InvalidRequest("structured_outputs.choice needs non-empty strings.", name)
        choice = json.dumps(given.choice, ensure_ascii=False)
        found.append(StructuredOutput(kind="choice", value=choice))
    if given.grammar is not None:
        if not given.grammar.strip():
            raise InvalidRequest("structured_outputs.grammar must not be empty.", name)
        found.append(StructuredOutput(kind="grammar", value=given.grammar))
    if given.structural_tag is not None:
        tag = given.structural_tag
        text = tag if isinstance(tag, str) else _json_text(tag, name)
        found.append(StructuredOutput(kind="structural_tag", value=text))
    if len(found) != 1:
        raise InvalidRequest(
            f"structured_outputs needs exactly one constraint, got {len(found)}.", name
        )
    return msgspec.structs.replace(
        found[0],
        whitespace_pattern=given.whitespace_pattern,
        disable_any_whitespace=bool(given.disable_any_whitespace),
        disable_additional_properties=bool(given.disable_additional_properties),
    )


def _schema_text(schema: object, param: str, member: str) -> str:
    """A JSON schema, given as JSON or as text holding JSON, as text; it is a member of `param`."""
    where = f"{param}.{member}"
    try:
        if isinstance(schema, str):
            schema = json.loads(schema)
        if not isinstance(schema, (dict, bool)):
            raise InvalidRequest(
                f"The JSON schema in {where} must be an object or a boolean.", param
            )
        return json.dumps(schema, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(f"The JSON schema in {where} is nested too deeply.", param) from None
    except ValueError:
        raise InvalidRequest(f"The JSON schema in {where} is not valid JSON.", param) from None


def _json_text(value: object, param: str) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest(
            f"The structural tag in {param} is nested too deeply.", param
        ) from None
