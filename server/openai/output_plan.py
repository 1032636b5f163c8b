"""From what a request asks for to its `OutputPlan` and to what the engine must be told."""

from collections.abc import Mapping
from typing import Any

import msgspec

from ortloom.models.tool_parsers.tool_parser import ToolParser
from ortloom.runtime.sampling_params import SamplingParams, StructuredOutput
from ortloom.server.context import FrontContext
from ortloom.server.metrics import RequestType
from ortloom.server.openai.forced_schema import named_call, required_calls
from ortloom.server.openai.output_parts import OutputPlan
from ortloom.server.openai.own_calls import BACKENDS, own_calls
from ortloom.server.openai.strict_calls import strict_calls
from ortloom.server.openai.thinking import thinking_of
from ortloom.server.openai.tool_choice import ToolUse
from ortloom.server.output_parsers import OutputParsers


def output_plan(
    use: ToolUse,
    front: FrontContext,
    request_type: RequestType,
    *,
    parallel: bool = True,
    include_reasoning: bool = True,
    template_kwargs: Mapping[str, Any] | None = None,
    prompt: str | None = None,
) -> OutputPlan:
    """How the samples of a request are taken apart.

    Args:
        use: what the request wants of its tools.
        front: whose parsers and metrics are used.
        request_type: whose reply it is, for the metrics.
        parallel: more than one call may be made.
        include_reasoning: reasoning is shown.
        template_kwargs: the variables the template was given.
        prompt: the rendered prompt.
    """
    parsers = front.parsers
    forced = _forced(use, front, parallel)

    def note(streaming: bool, found: bool) -> None:
        front.metrics.tool_parser_call(streaming=streaming, found=found, request_type=request_type)

    return OutputPlan(
        mode=use.mode,
        tools=use.tools,
        strict=use.strict,
        named=use.named,
        tool_parser=_tool_parser(use, parsers, forced),
        forced=forced,
        reasoning_parser=parsers.reasoning,
        template_kwargs=dict(template_kwargs or {}),
        prompt=prompt,
        parallel=parallel,
        include_reasoning=include_reasoning,
        note=note,
    )


def _forced(use: ToolUse, front: FrontContext, parallel: bool) -> StructuredOutput | None:
    """The grammar of calls that must be made; None = there are none, or their format is one of a
    plugin that keeps a syntax of its own.

    Raises:
        InvalidRequest: a tool's schema is nested too deeply.
    """
    parsers = front.parsers
    if use.mode not in ("required", "named"):
        return None
    if parsers.tool is not None and not parsers.tool.grammar_calls:
        if parsers.syntax is None:
            return None
        if front.config.structured_outputs.backend in BACKENDS:
            thinks = parsers.reasoning is not None
            named = use.named
            own = own_calls(
                parsers.syntax, use.tools, named=named, parallel=parallel, thinks=thinks
            )
            if own is not None:
                return own
    if use.named is None:
        return required_calls(use.tools, parallel)
    return named_call(next(tool for tool in use.tools if tool.name == use.named))


def _tool_parser(
    use: ToolUse, parsers: OutputParsers, forced: StructuredOutput | None
) -> type[ToolParser] | None:
    """The parser of calls; None = a grammar's plain JSON."""
    return None if forced is not None and forced.kind == "json" else parsers.tool


def planned_params(
    params: SamplingParams, plan: OutputPlan, front: FrontContext, budget: int | None = None
) -> SamplingParams:
    """The engine's parameters for a plan: calls that must be made become the constraint, which
    begins after the reasoning, and markers that are special tokens stay in the text.

    A forced call is all there is in the output, so another constraint of the request, which would
    be on its content, has nothing to hold on to.

    Args:
        params: as the request's own fields give them.
        plan: of the request.
        front: for the markers of reasoning.
        budget: reasoning tokens (`thinking.thinking_budget`).

    Raises:
        InvalidRequest: a tool's schema is nested too deeply.
    """
    changes: dict[str, Any] = {}
    if plan.forced is not None:
        changes["structured_output"] = plan.forced
    elif params.structured_output is None:
        strict = strict_calls(plan, front.parsers)
        if strict is not None:
            changes["structured_output"] = strict
    constrained = bool(changes) or params.structured_output is not None
    if constrained or budget is not None:
        changes["thinking"] = thinking_of(front, plan, budget, constrained=constrained)
    keeps = plan.reasoning_parser is not None and plan.reasoning_parser.keeps_special_tokens
    if plan.mode != "off" and plan.tool_parser is not None:
        keeps = keeps or plan.tool_parser.keeps_special_tokens
    if keeps and params.skip_special_tokens:
        changes["skip_special_tokens"] = False
        changes["hidden_token_ids"] = sorted({*front.parsers.hidden, *params.eos_token_ids})
    return msgspec.structs.replace(params, **changes) if changes else params
