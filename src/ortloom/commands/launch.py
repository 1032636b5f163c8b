"""`ortloom launch render MODEL [options]`: a server that renders and tokenises, without an engine.

It takes the options of `ortloom serve`; those of the engine decide nothing but the limits that
requests are checked against.
"""

from ortloom.commands import serve
from ortloom.errors import ConfigError
from ortloom.server.stop_signals import StartSignals

USAGE = """usage: ortloom launch render MODEL [options]

Serve /v1/completions and /v1/chat/completions render and derender, /tokenize, /detokenize,
/v1/models, /health and /metrics of a model without running it. Options: ortloom serve --help"""


def run(tokens: list[str]) -> int:
    """Run the command; returns the exit code of the supervisor.

    Raises:
        ConfigError: the first word is not a kind of server, or an option does not fit.
    """
    if not tokens or tokens[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    kind, rest = tokens[0], tokens[1:]
    if kind != "render":
        raise ConfigError(f"launch: unknown kind of server '{kind}' (choose from render)")
    if rest and rest[0] in ("-h", "--help"):
        print(USAGE)
        return 0
    with StartSignals() as signals:
        return serve.run(rest, None, signals, render_only=True)
