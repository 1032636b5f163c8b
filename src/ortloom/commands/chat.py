"""`ortloom chat`: talk to a running server; the conversation so far goes with each message."""

from typing import Any

from ortloom.commands.client import Answerer, AnswerFailed, converse, read_client_options

_ABOUT = "Talk to the model of a running server over /v1/chat/completions."
_HINT = "Please enter a message for the chat model (Ctrl-D ends):"


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        ConfigError: a flag is wrong.
        AnswerFailed: no answer to the one message of -q, or no server.
    """
    options = read_client_options("chat", tokens, _ABOUT)
    if options is None:
        return 0
    messages: list[dict[str, Any]] = []
    if options.system_prompt is not None:
        messages.append({"role": "system", "content": options.system_prompt})

    def ask(answerer: Answerer, message: str) -> None:
        messages.append({"role": "user", "content": message})
        try:
            answer = answerer.ask("/chat/completions", {"messages": messages}, _text)
        except AnswerFailed:
            messages.pop()  # as if it had not been said
            raise
        messages.append({"role": "assistant", "content": answer})

    return converse(options, ask, _HINT)


def _text(choice: dict[str, Any]) -> str | None:
    return (choice.get("delta") or {}).get("content")
