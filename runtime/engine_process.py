"""The engine process: `python -m ortloom.runtime.engine_process --address ipc://... --config FILE`.

It binds the address, loads the model, runs one decode step, then answers hello with EngineReady.
The configuration is JSON in a file, or on standard input with `--config -`. A start-up error is
one line on standard error and the error's exit code; clients that are connected get it too.
SIGTERM and SIGINT end all requests and exit 0. On Linux the kernel ends this process with its
parent.
"""

import argparse
import gc
import importlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec

from ortloom import logs
from ortloom.config import Config
from ortloom.errors import ConfigError, OrtloomError
from ortloom.log_setup import set_up_logging
from ortloom.parent_death import die_with_parent
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.engine_protocols import Runner
from ortloom.runtime.idle_work import IdleWork
from ortloom.runtime.zmq_endpoint import ZmqEndpoint

log = logging.getLogger("ortloom.engine")


def load_runner(config: Config) -> Runner:
    """The real ModelRunner; imported late so that importing this module stays cheap."""
    from ortloom.runtime.model_runner import ModelRunner

    return ModelRunner.load(config)


def serve(
    config: Config, address: str, runner_factory: Callable[[Config], Runner] = load_runner
) -> int:
    """Run the engine until a signal; returns the exit code.

    Args:
        config: the tree.
        address: where clients connect.
        runner_factory: makes a runner that has run a step.
    """
    endpoint = ZmqEndpoint(address)
    try:
        runner = runner_factory(config)
        core = EngineCore(config, runner)
        core.on_stuck = _end_at_once
        core.idle_work = IdleWork(runner.read_ahead, core.clock)
    except Exception as error:
        return _fail(endpoint, error, "the engine could not start")
    finally:
        gc.enable()
    gc.freeze()  # what loading made lives for ever: the collector need not look at it again
    _stop_on_signals(core, endpoint)
    try:
        core.run(endpoint, endpoint)
    except Exception as error:
        return _fail(endpoint, error, "the engine failed")
    endpoint.close()
    return 0


def _end_at_once(reason: str) -> None:
    """End a process whose engine thread does not come back; nothing can be tidied up by it."""
    logs.say(f"ortloom: error: the engine is stuck: {reason}")
    os._exit(1)


def _fail(endpoint: ZmqEndpoint, error: Exception, what: str) -> int:
    expected = isinstance(error, OrtloomError)
    text = str(error) if expected else f"{what} ({type(error).__name__}: {error})"
    logs.say(f"ortloom: error: {' '.join(text.split())}")
    log.debug("%s", what, exc_info=error)
    endpoint.report_failure(text if expected else what)
    endpoint.close()
    return error.exit_code if isinstance(error, OrtloomError) else 1


def _stop_on_signals(core: EngineCore, endpoint: ZmqEndpoint) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        core.stop()

    signal.set_wakeup_fd(endpoint.wake_fd, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def read_config(path: str) -> Config:
    """The configuration of a file, or of standard input for `-`.

    Raises:
        ConfigError: unreadable, or it does not fit.
    """
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return msgspec.json.decode(data, type=Config)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"cannot read the engine's configuration: {error}") from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="ortloom-engine", description="One ortloom engine.")
    parser.add_argument("--address", required=True, help="ZeroMQ address to bind, ipc://PATH")
    parser.add_argument("--config", default="-", help="JSON file, or - for standard input")
    parser.add_argument("--parent", type=int, help="pid to end with; default: the parent's")
    parser.add_argument(
        "--ahead", action="store_true", help="load modules before the configuration is there"
    )
    options = parser.parse_args(arguments)
    die_with_parent(os.getppid() if options.parent is None else options.parent)
    # Next to nothing of what loading makes is garbage; looking for it is a tenth of a start.
    gc.disable()
    if options.ahead:
        with suppress(Exception):  # load_runner meets it again and reports it
            importlib.import_module("ortloom.runtime.model_runner")
    try:
        config = read_config(options.config)
    except ConfigError as error:
        logs.say(f"ortloom: error: {error}")
        return error.exit_code
    set_up_logging(config.log, "engine")
    return serve(config, options.address)


if __name__ == "__main__":
    sys.exit(main())
