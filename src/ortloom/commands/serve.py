"""`ortloom serve MODEL [options]`.

Builds the configuration and hands it to the supervisor. The path to it stays light: neither numpy,
ONNX Runtime, Sanic nor torch is imported here.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ortloom import __version__
from ortloom.commands.additional_config import expand_additional_config
from ortloom.commands.arguments import ArgumentParser, Arguments
from ortloom.commands.config_file import config_tokens, split_config
from ortloom.commands.configuration import ServePlan, build_plan
from ortloom.commands.contradictions import check_contradictions
from ortloom.commands.dialect import apply_dialect
from ortloom.commands.environment_lines import warn_about_environment
from ortloom.commands.model_files import with_bundle
from ortloom.commands.route_options import without_engine
from ortloom.commands.structured_outputs import with_reasoning_flags
from ortloom.environment import Environment, read_environment
from ortloom.flags import FlagTable, flag_table
from ortloom.logs import say
from ortloom.process_title import blank_arguments
from ortloom.server.spawn import EarlyChildren
from ortloom.server.stop_signals import StartSignals

SECRET_FLAGS = frozenset({"--api-key", "--hf-token"})


def run(
    tokens: list[str],
    early: EarlyChildren | None = None,
    signals: StartSignals | None = None,
    *,
    render_only: bool = False,
) -> int:
    """Run the command; returns the exit code of the supervisor.

    Args:
        tokens: the arguments.
        early: an engine and a front that wait for the configuration; the caller discards them if
            they were not used.
        signals: what watches for them; they interrupt an export.
        render_only: serve what needs no engine, and start none.
    """
    table = flag_table()
    word = help_request(tokens)
    if word is not None:
        from ortloom.commands.help_text import help_text

        show_help(help_text(word or None, table), paged=word == "page")
        return 0
    env = read_environment()
    usage = "ortloom launch render MODEL" if render_only else "ortloom serve MODEL"
    args, plan = make_plan(tokens, env, table, usage)
    if render_only:
        plan = msgspec.structs.replace(plan, config=without_engine(plan.config))
    blank_arguments(_secrets(args))
    warn_about_environment(env, args)
    if plan.config.front.tls is not None:
        from ortloom.server.tls import server_context

        server_context(plan.config.front.tls)  # its errors come before anything is exported
    if plan.config.traces is not None:
        from ortloom.server.tracing import check_tracing

        check_tracing(plan.config.traces)
    if plan.config.log.python_config is not None:
        from ortloom.log_setup import apply

        apply(plan.config.log.python_config)
    _print_start(args, plan, env)
    if early is not None and not (Path(plan.config.model.bundle) / "manifest.json").is_file():
        early.discard()  # an export comes first, and needs the memory that they hold
        early = None
        if signals is not None:
            signals.release()
    if plan.config.front.one_process and early is not None:
        early.discard()
        early = None
    config = with_bundle(plan)
    if config.front.one_process:
        from ortloom.server import one_process

        if signals is not None:
            signals.release()
        return one_process.run(config)
    if signals is not None:
        signals.hold()
    from ortloom.server.supervisor import run as supervise

    return supervise(config, early, signals)


def make_plan(
    tokens: list[str], env: Environment, table: FlagTable, usage: str = "ortloom serve MODEL"
) -> tuple[Arguments, ServePlan]:
    """Parse and check everything that can be checked without touching the model.

    Args:
        tokens: the arguments.
        env: the environment.
        table: the options there are.
        usage: how the command is typed, for who named no model.

    Raises:
        ConfigError: see the modules that do the parts.
    """
    args = with_reasoning_flags(parse(tokens, table), table)
    expand_additional_config(args, table)
    check_contradictions(args)
    notices = apply_dialect(args, table)
    plan = build_plan(args, env, usage)
    lines = (*args.warnings, *notices, *plan.notices)
    return args, msgspec.structs.replace(plan, notices=lines)


def parse(tokens: list[str], table: FlagTable) -> Arguments:
    """Typed options over those of `--config FILE`.

    Raises:
        ConfigError: an option is unknown or has a bad value.
    """
    parser = ArgumentParser(table)
    file, rest = split_config(tokens)
    typed = parser.parse(rest)
    if file is None:
        return typed
    base = parser.parse(config_tokens(file, table))
    if (model := base.passed.get("--model")) is not None:
        base.passed["--model"] = msgspec.structs.replace(model, typed="model")  # as the file has it
    return Arguments(
        {**base.passed, **typed.passed}, typed.positionals, [*base.warnings, *typed.warnings]
    )


def help_request(tokens: list[str]) -> str | None:
    """The help that is asked for: None = none, empty = the overview, else the word."""
    for token in tokens:
        if token in ("-h", "--help"):
            return ""
        if token.startswith("--help="):
            return token.partition("=")[2]
    return None


def show_help(text: str, paged: bool) -> None:
    """Print a help text, through a pager where asked for and on a terminal."""
    if paged and sys.stdout.isatty():
        import pydoc

        pydoc.pager(text)
        return
    print(text)


def _secrets(args: Arguments) -> list[str]:
    values: list[str] = []
    for name in SECRET_FLAGS:
        value = args.get(name)
        if isinstance(value, list):
            values += map(str, value)
        elif isinstance(value, str):
            values.append(value)
    return values


def _print_start(args: Arguments, plan: ServePlan, env: Environment) -> None:
    for line in plan.notices:
        say(f"warning: {line}")
    front = plan.config.front
    if not front.api_keys and front.uds is None and not args.get("--host"):
        say(f"warning: listening on {front.host} without an API key (--api-key, VLLM_API_KEY)")
    if plan.config.log.level in ("DEBUG", "INFO", "NOTSET"):
        if env.logging.logo:
            say(f"ortloom version {__version__}")
        say(f"non-default args: {json.dumps(_non_default(args, plan), ensure_ascii=False)}")


def _non_default(args: Arguments, plan: ServePlan) -> Mapping[str, object]:
    shown: dict[str, object] = {"model": plan.config.model.bundle}
    for name, entry in args.passed.items():
        if name == "--model" or entry.value == entry.flag.default:
            continue
        secret = name in SECRET_FLAGS
        shown[name.removeprefix("--").replace("-", "_")] = "(hidden)" if secret else entry.value
    return shown
