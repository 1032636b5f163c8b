"""`ortloom complete`: have a running server continue texts; each stands for itself."""

from ortloom.commands.client import Answerer, converse, read_client_options

_ABOUT = "Have the model of a running server continue texts over /v1/completions."
_HINT = "Please enter a prompt to complete (Ctrl-D ends):"


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        ConfigError: a flag is wrong.
        AnswerFailed: no answer to the one text of -q, or no server.
    """
    options = read_client_options("complete", tokens, _ABOUT)
    if options is None:
        return 0
    limit = {} if options.max_tokens is None else {"max_tokens": options.max_tokens}

    def ask(answerer: Answerer, text: str) -> None:
        answerer.ask("/completions", {"prompt": text, **limit}, lambda choice: choice.get("text"))

    return converse(options, ask, _HINT)
