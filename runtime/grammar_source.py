"""From a request's constraint to the text the grammar engine compiles, within fixed limits.

The limits bound size and nesting before anything is compiled and the engine's own work while it
compiles, so that a hostile constraint is refused within a second. llguidance is imported at the
first constraint: its import would be a tenth of the engine's start.
"""

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ortloom.errors import InvalidRequest
from ortloom.runtime.grammars.schema_options import SchemaOptions
from ortloom.runtime.grammars.structural_tag import parse_structural_tag
from ortloom.runtime.grammars.structural_tag_lark import structural_tag_lark
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.schema_cost import too_costly

MAX_BYTES = 128 * 1024
"""Longest constraint text, in UTF-8 bytes."""

MAX_NESTING = 64
"""Deepest nesting of brackets in a constraint text."""

MAX_CHOICES = 4096

if TYPE_CHECKING:
    from llguidance import LLParserLimits

_PARAM = "structured_outputs"


def compile_limits() -> "LLParserLimits":
    """What the engine may spend on one grammar.

    A row has an item for each thing that may come next: four a property, one a choice. A step that
    stays below these limits takes some 100 ms at worst.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=20_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=200_000,
        step_max_items=20_000,
        max_lexer_states=50_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def check_size(constraint: StructuredOutput) -> None:
    """Refuse what no engine should look at.

    Raises:
        InvalidRequest: empty, too large or too deeply nested.
    """
    text = constraint.value
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidRequest(f"The constraint is longer than {MAX_BYTES} bytes.", _PARAM)
    if _nesting(text) > MAX_NESTING:
        raise InvalidRequest(f"The constraint is nested deeper than {MAX_NESTING}.", _PARAM)
    if constraint.kind != "json_object" and not text.strip():
        raise InvalidRequest(f"The {constraint.kind} constraint must not be empty.", _PARAM)


def schema_options(constraint: StructuredOutput) -> SchemaOptions:
    """The constraint's options for JSON schemas."""
    return SchemaOptions(
        any_whitespace=not constraint.disable_any_whitespace,
        whitespace_pattern=constraint.whitespace_pattern,
        additional_properties=not constraint.disable_additional_properties,
    )


def schema_of(constraint: StructuredOutput) -> dict[str, Any]:
    """The JSON schema of a json or json_object constraint, with the options that it can say.

    Raises:
        InvalidRequest: it is none, or too costly to compile.
    """
    if constraint.kind == "json_object":
        return {"type": "object"}
    schema = _load(constraint.value, "a JSON schema")
    if not isinstance(schema, dict | bool):
        raise InvalidRequest("A JSON schema must be an object or a boolean.", _PARAM)
    reason = too_costly(schema)
    if reason is not None:
        raise InvalidRequest(f"The schema would take too long to compile: {reason}.", _PARAM)
    return schema_options(constraint).schema(schema)


def choices_of(constraint: StructuredOutput) -> list[str]:
    """The texts of a choice constraint.

    Raises:
        InvalidRequest: it is no list of strings, or a long one.
    """
    items = _load(constraint.value, "a JSON list of strings")
    if not isinstance(items, list) or not items:
        raise InvalidRequest("choice must be a non-empty list of strings.", _PARAM)
    if len(items) > MAX_CHOICES:
        raise InvalidRequest(f"choice has more than {MAX_CHOICES} entries.", _PARAM)
    if not all(isinstance(item, str) for item in items):
        raise InvalidRequest("choice must hold strings only.", _PARAM)
    return items


def grammar_text(
    constraint: StructuredOutput, with_specials: Callable[[str], list[str | int]]
) -> str:
    """The grammar in llguidance's own form.

    Args:
        constraint: what is asked for.
        with_specials: cuts a text at its special tokens.

    Raises:
        InvalidRequest: empty, too large, too deeply nested, or not of its kind.
    """
    from llguidance import LLMatcher

    check_size(constraint)
    text = constraint.value
    try:
        match constraint.kind:
            case "json" | "json_object":
                return str(
                    LLMatcher.grammar_from_json_schema(
                        schema_of(constraint), overrides=schema_options(constraint).guidance()
                    )
                )
            case "choice":
                quoted = (json.dumps(c, ensure_ascii=False) for c in choices_of(constraint))
                return str(LLMatcher.grammar_from_lark(f"start: {' | '.join(quoted)}"))
            case "regex":
                return str(LLMatcher.grammar_from_regex(text))
            case "grammar":
                return str(LLMatcher.grammar_from_lark(to_lark(text)))
            case "structural_tag":
                lark = structural_tag_lark(
                    parse_structural_tag(text), with_specials, schema_options(constraint), to_lark
                )
                return str(LLMatcher.grammar_from_lark(lark))
    except InvalidRequest:
        raise
    except Exception as error:  # the converters raise many kinds for bad text
        reason = " ".join(str(error).split())[:400]
        raise InvalidRequest(f"Invalid {constraint.kind} constraint: {reason}", _PARAM) from None


def to_lark(text: str) -> str:
    """An EBNF or Lark grammar as Lark.

    Raises:
        Exception: of many kinds, for text that is neither.
    """
    from llguidance.gbnf_to_lark import any_to_lark

    return str(any_to_lark(text))


def _load(text: str, what: str) -> object:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"The constraint is not {what}: {error}", _PARAM) from None


def _nesting(text: str) -> int:
    """Deepest bracket nesting outside JSON strings and escapes; for patterns quotes mean nothing
    special often enough that brackets inside them are counted too."""
    depth = deepest = 0
    quoted = escaped = False
    is_json = text.lstrip()[:1] in ("{", "[")
    for char in text:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = True
        elif char == '"' and is_json:
            quoted = not quoted
        elif quoted:
            continue
        elif char in "([{":
            depth += 1
            deepest = max(deepest, depth)
        elif char in ")]}":
            depth = max(0, depth - 1)
    return deepest
