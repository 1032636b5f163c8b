"""Calls that the model makes of its own accord, held to their form by a structural tag.

`--tool-strict-level` sets the least that holds for every request with tools, a tool's own `strict`
its arguments alone: text is free until a call begins, which then names one of the tools and is
well formed, with arguments of any kind or of the tool's schema.
"""

import json
from collections.abc import Mapping
from typing import Any

from ortloom.errors import InvalidRequest
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.server.openai.forced_schema import arguments_schema
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.output_parsers import OutputParsers

_ANY_ARGUMENTS: Mapping[str, Any] = {"type": "object"}


def strict_calls(plan: OutputPlan, parsers: OutputParsers) -> StructuredOutput | None:
    """The constraint on calls of a request, or None.

    Args:
        plan: of the request; only mode `auto` has such calls.
        parsers: the front's.

    Raises:
        InvalidRequest: a tool's schema is nested too deeply.
    """
    form = parsers.form
    if plan.mode != "auto" or form is None:
        return None
    if parsers.strict == "auto" and not plan.strict:
        return None
    tags = []
    for tool in plan.tools:
        whole = parsers.strict == "parameter" or tool.name in plan.strict
        schema = arguments_schema(tool, "#") if whole else _ANY_ARGUMENTS
        tags.append(
            {
                "type": "tag",
                "begin": form.begin(tool.name),
                "content": {"type": "json_schema", "json_schema": schema},
                "end": form.after,
            }
        )
    made = {
        "type": "triggered_tags",
        "triggers": [form.trigger],
        "tags": tags,
        "at_least_one": False,
        "stop_after_first": not plan.parallel,
    }
    try:
        value = json.dumps({"type": "structural_tag", "format": made}, ensure_ascii=False)
    except RecursionError:
        raise InvalidRequest("The tools' parameters are nested too deeply.", "tools") from None
    return StructuredOutput(kind="structural_tag", value=value)
