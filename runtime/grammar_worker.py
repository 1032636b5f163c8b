"""Tries constraints out: `python -m ortloom.runtime.grammar_worker`, a process that may hang.

Compiling a grammar cannot be interrupted, and some small ones never end (a schema's `multipleOf`
with a large divisor). Reads frames from standard input, each a four-byte little-endian length and a
msgpack `StructuredOutput`; answers each with a frame that holds null or why the constraint is
refused. Limits its own CPU time before each one and its memory once. Ends when its input ends, when
it has been idle for a while, and with its parent.
"""

import argparse
import os
import resource
import select
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ortloom.errors import InvalidRequest
from ortloom.parent_death import die_with_parent
from ortloom.runtime.sampling_params import StructuredOutput
from ortloom.runtime.structured_output import GrammarCompiler

CPU_SECONDS = 3
"""Processor time for one constraint; what is compiled here is compiled again in the engine."""

MEMORY_BYTES = 2 * 1024 * 1024 * 1024
IDLE_SECONDS = 60.0

LENGTH_BYTES = 4


def verdict(compiler: GrammarCompiler, constraint: StructuredOutput) -> str | None:
    """Why a constraint is refused, or None."""
    try:
        compiler.compile(constraint)
    except InvalidRequest as error:
        return str(error)
    except MemoryError:
        return "The constraint needs too much memory."
    return None


def read_exactly(descriptor: int, count: int) -> bytes:
    """`count` bytes, fewer at the end of the input."""
    data = b""
    while len(data) < count and (more := os.read(descriptor, count - len(data))):
        data += more
    return data


def _limit_cpu() -> None:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = int(usage.ru_utime + usage.ru_stime) + 1
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (used + CPU_SECONDS, hard))


def _limit(kind: int, most: int) -> None:
    """Lower a limit; one that is lower already stays."""
    _, hard = resource.getrlimit(kind)
    if hard == resource.RLIM_INFINITY or hard > most:
        resource.setrlimit(kind, (most, most))


def serve(compiler: GrammarCompiler, source: int, target: int) -> None:
    """Answer constraints until the input ends or nothing comes for IDLE_SECONDS."""
    while select.select([source], [], [], IDLE_SECONDS)[0]:
        head = read_exactly(source, LENGTH_BYTES)
        if len(head) < LENGTH_BYTES:
            return
        body = read_exactly(source, int.from_bytes(head, "little"))
        _limit_cpu()
        constraint = msgspec.msgpack.decode(body, type=StructuredOutput)
        answer = msgspec.msgpack.encode(verdict(compiler, constraint))
        os.write(target, len(answer).to_bytes(LENGTH_BYTES, "little") + answer)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry of the process."""
    parser = argparse.ArgumentParser(prog="ortloom-grammars")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, required=True)
    parser.add_argument("--eos", type=int, nargs="*", default=[])
    options = parser.parse_args(arguments)
    die_with_parent(options.parent)
    _limit(resource.RLIMIT_AS, MEMORY_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    compiler = GrammarCompiler(options.tokenizer, options.vocab_size, options.eos)
    serve(compiler, sys.stdin.fileno(), sys.stdout.fileno())


if __name__ == "__main__":
    main()
