"""The command line: `ortloom serve | export | chat | complete | run-batch | bench | …`.

This module imports nothing heavy; each command's module is loaded when the command runs. It is
also the one place that turns errors into exit codes.
"""

import importlib
import itertools
import os
import sys
from collections.abc import Callable, Sequence

from ortloom import __version__
from ortloom.errors import OrtloomError
from ortloom.logs import say

_COMMANDS = {
    "serve": "serve a bundle or checkpoint over the OpenAI HTTP API",
    "export": "turn a checkpoint into a bundle",
    "chat": "talk to the model of a running server",
    "complete": "have the model of a running server continue texts",
    "run-batch": "answer a file of requests in OpenAI's batch format",
    "launch": "serve what needs no engine: launch render",
    "bench": "measure a running server, or the engine in this process",
    "verify": "check every file of a bundle against its manifest",
    "cache": "list, prune or clear the bundles that serve exported",
    "collect-env": "print a report about this machine and installation",
}
_NOT_YET = {
    "preload": "the weight cache daemon",
    "snapshot": "process snapshots",
}

_MODULES = {"serve": "serve_ahead", "collect-env": "collect_env", "run-batch": "run_batch"}

INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except OrtloomError as error:
        return report_error(error, arguments)
    except KeyboardInterrupt:
        say("ortloom: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader of our output is gone; a second failure at interpreter exit is silenced too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # no traceback reaches a user who did not ask for one
        return report_crash(error, arguments)


def report_error(error: OrtloomError, arguments: Sequence[str]) -> int:
    """Print an error the way argument parsers do; returns its exit code."""
    command = _command_name(arguments)
    if error.exit_code == 2:
        say(f"usage: {command} [options]; see {command} --help")
    say(f"{command}: error: {error}")
    _trace(error, arguments)
    return error.exit_code


def _command_name(arguments: Sequence[str]) -> str:
    if not arguments or arguments[0] not in _COMMANDS:
        return "ortloom"
    words = list(arguments[:1])
    if words == ["bench"]:
        from ortloom.commands.bench import BENCHMARKS

        words += [word for word in arguments[1:2] if word in BENCHMARKS]
    elif words == ["launch"]:
        words += [word for word in arguments[1:2] if word == "render"]
    return " ".join(["ortloom", *words])


def report_crash(error: Exception, arguments: Sequence[str]) -> int:
    """Print an error nobody foresaw in one line; returns the exit code."""
    text = " ".join(str(error).split()) or "no text"
    say(f"ortloom: internal error: {type(error).__name__}: {text} (--log-level debug shows more)")
    _trace(error, arguments)
    return 1


def _trace(error: Exception, arguments: Sequence[str]) -> None:
    lowered = [argument.lower() for argument in arguments]
    pairs = itertools.pairwise(lowered)
    if "--log-level=debug" in lowered or ("--log-level", "debug") in pairs or "-v" in lowered:
        import traceback

        traceback.print_exception(error)


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_usage())
        return 0
    first, rest = arguments[0], arguments[1:]
    if first in ("-v", "--version"):
        print(__version__)
        return 0
    if first == "--omni" or "--omni" in rest[:1]:
        return _usage_error("--omni: there is no omni package to hand the command line to")
    if first in _NOT_YET:
        return _usage_error(f"'{first}' is known, but not in this build yet: {_NOT_YET[first]}")
    if first not in _COMMANDS:
        return _usage_error(_unknown(first))
    return _command(first)(rest)


def _command(name: str) -> Callable[[list[str]], int]:
    module = importlib.import_module(f"ortloom.commands.{_MODULES.get(name, name)}")
    run: Callable[[list[str]], int] = module.run
    return run


def _usage() -> str:
    width = max(map(len, _COMMANDS)) + 2
    rows = [f"  {name:<{width}}{text}" for name, text in _COMMANDS.items()]
    head = "usage: ortloom [-h] [-v] <command> ...\n\ncommands:"
    return "\n".join([head, *rows, "", "ortloom <command> --help says more."])


def _usage_error(text: str) -> int:
    say("usage: ortloom [-h] [-v] <command> ...")
    say(f"ortloom: error: {text}")
    return 2


def _unknown(name: str) -> str:
    import difflib

    what = "unrecognized arguments" if name.startswith("-") else "unknown command"
    near = difflib.get_close_matches(name, _COMMANDS, n=1)
    return f"{what}: {name}" + (f" (did you mean {near[0]}?)" if near else "")
