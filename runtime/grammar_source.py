"""From a request's constraint to the text the grammar engine compiles, within fixed limits.

The limits bound size and nesting before anything is compiled and the engine's own work while it
compiles, so that a hostile constraint is refused within a second. llguidance is imported at the
first constraint: its import would be a tenth of the engine's start.
"""

import json
from typing import TYPE_CHECKING

from ortloom.errors import InvalidRequest
from ortloom.runtime.sampling_params import StructuredOutput

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


def grammar_text(constraint: StructuredOutput) -> str:
    """The grammar in the engine's own form.

    Raises:
        InvalidRequest: empty, too large, too deeply nested, or not of its kind.
    """
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    text = constraint.value
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidRequest(f"The constraint is longer than {MAX_BYTES} bytes.", _PARAM)
    if _nesting(text) > MAX_NESTING:
        raise InvalidRequest(f"The constraint is nested deeper than {MAX_NESTING}.", _PARAM)
    try:
        if constraint.kind == "json_object":
            return _json_schema({"type": "object"}, constraint)
        if constraint.kind == "json":
            return _json_schema(_load(text, "a JSON schema"), constraint)
        if constraint.kind == "choice":
            return _choice(_load(text, "a JSON list of strings"))
        if not text.strip():
            raise InvalidRequest(f"The {constraint.kind} constraint must not be empty.", _PARAM)
        if constraint.kind == "regex":
            return str(LLMatcher.grammar_from_regex(text))
        return str(LLMatcher.grammar_from_lark(any_to_lark(text)))
    except InvalidRequest:
        raise
    except Exception as error:  # the converters raise many kinds for bad text
        reason = " ".join(str(error).split())[:400]
        raise InvalidRequest(f"Invalid {constraint.kind} constraint: {reason}", _PARAM) from None


def _json_schema(schema: object, constraint: StructuredOutput) -> str:
    if isinstance(schema, bool):
        schema = {} if schema else {"not": {}}
    if not isinstance(schema, dict):
        raise InvalidRequest("A JSON schema must be an object or a boolean.", _PARAM)
    options: dict[str, object] = {
        "whitespace_flexible": not constraint.disable_any_whitespace,
        "coerce_one_of": True,  # oneOf as anyOf: exclusion cannot be seen token by token
    }
    if constraint.whitespace_pattern is not None:
        options["whitespace_pattern"] = constraint.whitespace_pattern
    from llguidance import LLMatcher

    return str(LLMatcher.grammar_from_json_schema(schema, overrides=options))


def _choice(items: object) -> str:
    if not isinstance(items, list) or not items:
        raise InvalidRequest("choice must be a non-empty list of strings.", _PARAM)
    if len(items) > MAX_CHOICES:
        raise InvalidRequest(f"choice has more than {MAX_CHOICES} entries.", _PARAM)
    if not all(isinstance(item, str) for item in items):
        raise InvalidRequest("choice must hold strings only.", _PARAM)
    from llguidance import LLMatcher

    quoted = " | ".join(json.dumps(item, ensure_ascii=False) for item in items)
    return str(LLMatcher.grammar_from_lark(f"start: {quoted}"))


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
