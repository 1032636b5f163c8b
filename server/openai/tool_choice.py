"""Rules between `tools` and `tool_choice`."""

from ortloom.errors import InvalidRequest, UnsupportedParameter
from ortloom.server.openai.wire_chat import ChatCompletionRequest, Tool


def check_tools(body: ChatCompletionRequest, tools: list[Tool] | None) -> None:
    """Refuse what cannot be honoured; without a tool parser only `none` can.

    Raises:
        InvalidRequest: an empty list, a choice without tools, an unknown choice or name.
        UnsupportedParameter: a choice that needs calls to be produced or parsed.
    """
    choice = body.tool_choice
    if tools is not None and not tools:
        raise InvalidRequest("tools must not be an empty list.", "tools")
    if tools is None:
        if choice is not None and choice != "none":
            raise InvalidRequest("tool_choice needs tools.", "tool_choice")
        return
    if choice == "none":
        return
    if choice is None or choice == "auto":
        raise InvalidRequest(
            "tool_choice auto needs --enable-auto-tool-choice and --tool-call-parser."
        )
    if isinstance(choice, str):
        if choice != "required":
            raise InvalidRequest(
                f"tool_choice '{choice}' is unknown; it is none, auto, required or a function.",
                "tool_choice",
            )
    else:
        _check_named(choice, tools)
    raise UnsupportedParameter("tool_choice can only be none: this server produces no tool calls.")


def _check_named(choice: dict[str, object], tools: list[Tool]) -> None:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str):
        raise InvalidRequest("tool_choice must name a function.", "tool_choice")
    if name not in {tool.function.name for tool in tools}:
        raise InvalidRequest(f"tool_choice names '{name}', which is not a tool.", "tool_choice")
