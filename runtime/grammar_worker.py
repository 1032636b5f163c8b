"""Tries constraints out: `python -m ortloom.runtime.grammar_worker`, a process that may hang.

Compiling a grammar cannot be interrupted, and some small ones never end (a schema's `multipleOf`
with a large divisor). Reads frames from standard input, each a four-byte little-endian length and a
msgpack `StructuredOutput`; answers each with a frame that holds null or why the constraint is
refused. Each one is compiled in a child of this process, which has the byte table already, under a
limit of processor time and of memory: a constraint that takes too much ends its child only. Yields
to the engine where both want the same processor. Ends
when its input ends, when it has been idle for a while, and with its parent.
"""

import argparse
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import InvalidRequest
from ortloom.parent_death import die_with_parent
from ortloom.runtime.grammar_trial import TOO_MUCH
from ortloom.runtime.grammars.select import COMPILE_SECONDS, IDLE_SECONDS, MEMORY_BYTES
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.schema_cost import MOST_PAIRS, property_pairs
from ortloom.runtime.structured_output import GrammarCompiler

LENGTH_BYTES = 4

SECONDS_A_PAIR = 0.25e-6
"""Processor time beyond the usual for each pair of properties of an object: a wide schema is not a
bad one. Some 0.12e-6 are needed, and twice that on a busy machine."""

YIELDING = 5
"""How nice the worker is once it is loaded: a step of the engine waits for its slowest thread."""


def verdict(compiler: GrammarCompiler, constraint: StructuredOutput) -> str | None:
    """Why a constraint is refused, or None."""
    try:
        compiler.compile(constraint)
    except InvalidRequest as error:
        return str(error)
    except MemoryError:
        return "The constraint needs too much memory."
    return None


def seconds_for(constraint: StructuredOutput, usual: float) -> float:
    """The processor time that a constraint may take."""
    if constraint.kind not in ("json", "structural_tag"):
        return usual
    try:
        return usual + SECONDS_A_PAIR * min(
            property_pairs(json.loads(constraint.value)), MOST_PAIRS
        )
    except (ValueError, RecursionError):
        return usual


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes, fewer at the end of the input."""
    data = b""
    while len(data) < count and (more := os.read(descriptor, count - len(data))):
        data += more
    return data


def in_child(compiler: GrammarCompiler, constraint: StructuredOutput, seconds: float) -> str | None:
    """The verdict of a child process, which may take `seconds` of processor time."""
    source, target = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGPROF, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_PROF, seconds)
            os.write(target, msgspec.msgpack.encode(verdict(compiler, constraint)))
        finally:
            os._exit(0)
    os.close(target)
    data = b""
    while more := os.read(source, 1 << 16):
        data += more
    os.close(source)
    os.waitpid(child, 0)
    if not data:
        return TOO_MUCH
    return msgspec.msgpack.decode(data, type=str | None)


def _limit(kind: int, most: int) -> None:
    """Lower a limit; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(kind, (most, most))


def serve(compiler: GrammarCompiler, source: int, target: int, seconds: float, idle: float) -> None:
    """Answer constraints until the input ends or nothing comes for `idle` seconds."""
    while select.select([source], [], [], idle)[0]:
        head = read_exactly(source, LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return
        body = read_exactly(source, int.from_bytes(head, "little"))
        constraint = msgspec.msgpack.decode(body, type=StructuredOutput)
        allowed = seconds_for(constraint, seconds)
        answer = msgspec.msgpack.encode(in_child(compiler, constraint, allowed))
        os.write(target, len(answer).to_bytes(LENGTH_BYTES, "little") + answer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="ortloom-grammars")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--eos", type=int, nargs="*", default=[])
    parser.add_argument("--options", default="{}")
    given = parser.parse_args(arguments)
    die_with_parent(given.parent)
    options = msgspec.json.decode(given.options, type=StructuredOutputsConfig)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES[options.backend])
    _limit(resource.RLIMIT_CORE, 0)
    compiler = GrammarCompiler(given.tokenizer, given.vocab_size, given.eos, None, options)
    compiler.load()
    backend = options.backend
    os.nice(YIELDING)
    times = COMPILE_SECONDS[backend], IDLE_SECONDS[backend]
    serve(compiler, sys.stdin.fileno(), sys.stdout.fileno(), *times)


if __name__ == "__main__":
    main()
