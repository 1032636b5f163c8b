"""Rules between `tools` and `tool_choice`: what a request wants of its tools."""

from dataclasses import dataclass

from ortloom.errors import InvalidRequest
from ortloom.models.tool_parsers.tool_parser import ToolSpec
from ortloom.server.openai.output_parts import ToolMode
from ortloom.server.openai.wire_chat import Tool
from ortloom.server.output_parsers import OutputParsers


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How a request uses its tools.

    Attributes:
        mode: how the output holds calls; `off` = its text is not looked at.
        tools: what is offered.
        named: the function that must be called, with mode `named`.
        strict: names of tools that ask for calls which fit their schema.
        hidden: `tool_choice` none was asked for.
    """

    mode: ToolMode = "off"
    tools: tuple[ToolSpec, ...] = ()
    named: str | None = None
    strict: frozenset[str] = frozenset()
    hidden: bool = False


def tool_use(
    choice: str | dict[str, object] | None, tools: list[Tool] | None, parsers: OutputParsers
) -> ToolUse:
    """What a chat request wants; no choice means `auto` where there are tools.

    With a parser but without `--enable-auto-tool-choice`, `auto` leaves the text as it is.

    Raises:
        InvalidRequest: an empty list, a choice without tools, an unknown choice or name, or `auto`
            on a server that cannot parse calls.
    """
    if tools is not None and not tools:
        raise InvalidRequest("tools must not be an empty list.", "tools")
    if tools is None:
        if choice is not None and choice != "none":
            raise InvalidRequest("tool_choice needs tools.", "tool_choice")
        return ToolUse()
    specs = tuple(ToolSpec(tool.function.name, tool.function.parameters or {}) for tool in tools)
    if choice == "none":
        return ToolUse("off", specs, hidden=True)
    if choice is None or choice == "auto":
        if parsers.tool is None:
            raise InvalidRequest(
                "tool_choice auto needs --enable-auto-tool-choice and --tool-call-parser."
            )
        strict = frozenset(tool.function.name for tool in tools if tool.function.strict)
        return ToolUse("auto" if parsers.auto else "off", specs, strict=strict)
    if isinstance(choice, str):
        if choice != "required":
            raise InvalidRequest(
                f"tool_choice '{choice}' is unknown; it is none, auto, required or a function.",
                "tool_choice",
            )
        return ToolUse("required", specs)
    return ToolUse("named", specs, named=_named(choice, specs))


def _named(choice: dict[str, object], tools: tuple[ToolSpec, ...]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice must name a function.", "tool_choice")
    if name not in {tool.name for tool in tools}:
        raise InvalidRequest(f"tool_choice names '{name}', which is not a tool.", "tool_choice")
    return name
