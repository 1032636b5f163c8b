"""`tools` and `tool_choice` of the Responses API, as the chat pipeline knows them.

Functions may come alone or inside a namespace; there, `ns` and `f` are offered to the model as
`ns__f`. Tools that OpenAI's servers run themselves (search, code interpreter, …) do not exist
here: they are accepted, echoed and never offered to the model.
"""

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from ortloom.errors import InvalidRequest, SchemaViolation
from ortloom.server.limits import convert_json
from ortloom.server.openai.wire_chat import FunctionDefinition, Tool

HOSTED = frozenset(
    {
        "apply_patch",
        "code_interpreter",
        "computer",
        "computer_use_preview",
        "custom",
        "file_search",
        "image_generation",
        "local_shell",
        "mcp",
        "shell",
        "tool_search",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
    }
)
"""Tool types that are accepted and not offered."""

ToolChoice = str | dict[str, Any]


class FunctionTool(msgspec.Struct, kw_only=True):
    """A function."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    type: Literal["function"] = "function"
    description: str | None = None


class NamespaceTool(msgspec.Struct, kw_only=True):
    """Functions with a common prefix."""

    name: str
    tools: list[Any]
    type: Literal["namespace"] = "namespace"
    description: str | None = None


class AllowedTools(msgspec.Struct, kw_only=True):
    """`tool_choice` of type `allowed_tools`."""

    mode: Literal["auto", "required"]
    tools: list[dict[str, Any]]
    type: Literal["allowed_tools"] = "allowed_tools"


@dataclass(slots=True, frozen=True)
class ToolSet:
    """The tools of one request.

    Attributes:
        offered: what the model is told of.
        choice: `none`, `auto`, `required` or chat's form of a named function.
        echo: the `tools` member of the response.
        echo_choice: its `tool_choice`.
        namespaces: (namespace, own name) by offered name.
    """

    offered: list[Tool]
    choice: ToolChoice
    echo: list[Any]
    echo_choice: ToolChoice
    namespaces: dict[str, tuple[str, str]]


def tool_set(tools: list[Any] | None, choice: ToolChoice | None) -> ToolSet:
    """Check and translate.

    Raises:
        SchemaViolation: a tool is none.
        InvalidRequest: the choice is unknown, or names or needs a function that is not there.
    """
    offered: list[Tool] = []
    echo: list[Any] = []
    namespaces: dict[str, tuple[str, str]] = {}
    for index, tool in enumerate(tools or ()):
        where = f"body.tools.{index}"
        kind = _kind(tool, where)
        if kind == "function":
            function = convert_json(tool, FunctionTool, where)
            offered.append(_offered(function.name, function))
            echo.append(msgspec.to_builtins(function))
        elif kind == "namespace":
            space = convert_json(tool, NamespaceTool, where)
            for number, inner in enumerate(space.tools):
                place = f"{where}.tools.{number}"
                if _kind(inner, place) != "function":
                    continue
                function = convert_json(inner, FunctionTool, place)
                name = f"{space.name}__{function.name}"
                namespaces[name] = (space.name, function.name)
                offered.append(_offered(name, function))
            echo.append(tool)
        elif kind in HOSTED:
            echo.append(tool)
        else:
            raise SchemaViolation(
                f"1 validation error: unknown tool type '{kind}' at '{where}.type'.",
                f"{where}.type",
            )
    return _chosen(ToolSet(offered, "none", echo, "none", namespaces), choice)


def _kind(tool: object, where: str) -> str:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if not isinstance(kind, str):
        raise SchemaViolation(f"1 validation error: '{where}' is no tool with a type.", where)
    return kind


def _offered(name: str, function: FunctionTool) -> Tool:
    return Tool(
        function=FunctionDefinition(
            name=name,
            description=function.description,
            parameters=function.parameters,
            strict=function.strict,
        )
    )


def _chosen(tools: ToolSet, choice: ToolChoice | None) -> ToolSet:
    if choice is None or choice in ("auto", "none"):
        if not tools.offered or choice == "none":
            return tools
        return _with(tools, "auto", "auto")
    if choice == "required":
        return _with(_needed(tools), "required", "required")
    if isinstance(choice, str):
        raise InvalidRequest(
            f"tool_choice '{choice[:40]}' is unknown; it is none, auto, required or an object.",
            "tool_choice",
        )
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _allowed(tools, choice)
    if kind != "function":
        raise InvalidRequest("tool_choice of this type is not supported.", "tool_choice")
    name = _function_name(choice, tools)
    return _with(tools, {"type": "function", "function": {"name": name}}, choice)


def _with(tools: ToolSet, choice: ToolChoice, echo: ToolChoice) -> ToolSet:
    return ToolSet(tools.offered, choice, tools.echo, echo, tools.namespaces)


def _needed(tools: ToolSet) -> ToolSet:
    if not tools.offered:
        raise InvalidRequest("tool_choice needs tools.", "tool_choice")
    return tools


def _allowed(tools: ToolSet, choice: dict[str, Any]) -> ToolSet:
    """Only the allowed functions are offered."""
    allowed = convert_json(choice, AllowedTools, "body.tool_choice")
    functions = [tool for tool in allowed.tools if tool.get("type", "function") == "function"]
    names = {_function_name(tool, tools) for tool in functions}
    offered = [tool for tool in tools.offered if tool.function.name in names]
    kept = ToolSet(offered, allowed.mode, tools.echo, choice, tools.namespaces)
    if allowed.mode == "required":
        return _needed(kept)
    return kept if offered else _with(kept, "none", choice)


def _function_name(named: dict[str, Any], tools: ToolSet) -> str:
    """The offered name of a function that a choice names."""
    name = named.get("name")
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice must name a function.", "tool_choice")
    if isinstance(space := named.get("namespace"), str):
        name = f"{space}__{name}"
    if name not in {tool.function.name for tool in tools.offered}:
        raise InvalidRequest(
            f"tool_choice names '{name[:80]}', which is not a tool.", "tool_choice"
        )
    return name
