"""`ortloom bench startup MODEL [options of ortloom serve]`."""

import asyncio
import json
import os
import sys
from pathlib import Path

from ortloom.bench.startup import StartupPlan, free_port, measure_startup
from ortloom.commands.arguments import Passed
from ortloom.commands.bench.engine import engine_config
from ortloom.commands.bench.options import Options, output_path, read_options, write_json
from ortloom.commands.bench.tables import is_own
from ortloom.errors import ConfigError
from ortloom.process_title import blank_arguments

_ABOUT = "Time the start of `ortloom serve` in fresh processes, up to its first answers."
_USAGE = "usage: ortloom bench startup MODEL [options] [options of ortloom serve]"
_SET_HERE = frozenset({"--model", "--host", "--port", "--api-key"})


def run(tokens: list[str]) -> int:
    """Run the command.

    Raises:
        OrtloomError: a flag is wrong, or a server does not start.
    """
    options = read_options("startup", tokens, _ABOUT, _USAGE)
    if options is None:
        return 0
    output = output_path(options)
    plan = _plan(options)
    try:
        result = asyncio.run(measure_startup(plan))
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None  # a SIGTERM
    print("\n".join(result.lines()))
    if output is not None:
        write_json(output, {"model": str(plan.bundle), **result.to_json()})
    return 0


def _plan(options: Options) -> StartupPlan:
    for name in ("--uds", "--ssl-keyfile"):
        if options.given(name):
            raise ConfigError(f"argument {name}: servers are started on a port of the loopback")
    if options.given("--host") and options.text("--host") not in ("127.0.0.1", "localhost"):
        raise ConfigError("argument --host: servers are started on 127.0.0.1")
    cold = options.count("--num-iters-cold", 0)
    warm = options.count("--num-iters-warm", 0)
    if cold + warm == 0:
        raise ConfigError("argument --num-iters-warm: there is nothing to measure")
    config = engine_config(options, "startup")
    port = (options.given("--port") and config.front.port) or free_port()
    command = [sys.executable, "-P", "-m", "ortloom", "serve", config.model.bundle]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    if not options.given("--disable-access-log-for-endpoints"):
        command += ["--disable-access-log-for-endpoints", "/health"]  # it is asked again and again
    for name, entry in options.args.passed.items():
        if name not in _SET_HERE and not is_own("startup", name):
            command += _tokens(entry)
    keys = config.front.api_keys
    blank_arguments(keys)
    return StartupPlan(
        command=command,
        # the environment is the way of a key that other users of the machine cannot see
        environment={**os.environ, **({"VLLM_API_KEY": keys[0]} if keys else {})},
        port=port,
        bundle=Path(config.model.bundle),
        headers={"Authorization": f"Bearer {keys[0]}"} if keys else {},
        cold=cold,
        warmup=options.count("--num-iters-warmup", 0) if warm else 0,
        warm=warm,
        hide_progress=options.on("--disable-tqdm"),
    )


def _tokens(entry: Passed) -> list[str]:
    """A parsed flag as tokens again."""
    flag, value = entry.flag, entry.value
    if flag.kind in ("switch", "flag"):
        return [flag.name] if value else [flag.negative or ""]
    if isinstance(value, list) and flag.kind == "append":
        return [token for item in value for token in (flag.name, str(item))]
    if isinstance(value, list) and flag.kind in ("list", "ints"):
        return [flag.name, *map(str, value)]
    if flag.kind in ("json", "jsonlist"):
        return [f"{flag.name}={json.dumps(value)}"]
    if value is True:  # an optional value that was left out
        return [flag.name]
    return [f"{flag.name}={value}"]
