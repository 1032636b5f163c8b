"""`ortloom serve`: start the first processes, then read the flags.

An engine and a front spend most of their start on loading modules, which needs no flag. On two
cores that takes a fifth off the time to the first answer. This module imports nothing heavy.
"""

from ortloom.server.spawn import EarlyChildren


def run(tokens: list[str]) -> int:
    """Run the command; returns the exit code of the supervisor."""
    if any(token in ("-h", "--help") or token.startswith("--help=") for token in tokens):
        from ortloom.commands import serve

        return serve.run(tokens)
    early = EarlyChildren()
    try:
        from ortloom.commands import serve

        return serve.run(tokens, early)
    finally:
        early.discard()
