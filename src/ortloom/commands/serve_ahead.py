"""`ortloom serve`: start the first processes, then read the flags.

An engine and a front spend most of their start on loading modules, which needs no flag. On two
cores that takes a fifth off the time to the first answer. This module imports nothing heavy.
"""

from ortloom.logs import say
from ortloom.server.spawn import EarlyChildren
from ortloom.server.stop_signals import StartSignals


def run(tokens: list[str]) -> int:
    """Run the command; returns the exit code of the supervisor, or 0 where a signal stops it
    before there is one."""
    if any(token in ("-h", "--help") or token.startswith("--help=") for token in tokens):
        from ortloom.commands import serve

        return serve.run(tokens)
    with StartSignals() as signals:
        early = EarlyChildren()
        try:
            try:
                from ortloom.commands import serve

                return serve.run(tokens, early, signals)
            finally:
                signals.hold()
        except KeyboardInterrupt:
            say("ortloom: stopped before it served")
            return 0
        finally:
            early.discard()
