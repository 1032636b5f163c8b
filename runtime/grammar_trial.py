"""Trying a constraint out in a worker process before the engine compiles it.

The worker is started at the first constraint, ends by itself when idle and is replaced when it
dies. Nothing a constraint does to it reaches the engine.
"""

import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec

from ortloom.config import StructuredOutputsConfig
from ortloom.errors import InvalidRequest
from ortloom.runtime.grammars.select import START_SECONDS
from ortloom.runtime.sampling_params import StructuredOutput

WALL_SECONDS = 30.0
"""For one constraint, the worker's start included; the limit of processor time is lower."""

_MODULE = "ortloom.runtime.grammar_worker"
_LENGTH_BYTES = 4
_PARAM = "structured_outputs"
TOO_MUCH = "The constraint takes too much time or memory to compile."

Worker = subprocess.Popen[bytes]


class GrammarTrial:
    """One worker process and the line to it. Safe to use from several threads, one at a time.

    Args:
        tokenizer_file: the bundle's tokenizer.json.
        vocab_size: V.
        eos_token_ids: the model's primary end ids.
        options: the grammar engine, and what holds for all constraints.
    """

    def __init__(
        self,
        tokenizer_file: Path,
        vocab_size: int,
        eos_token_ids: Sequence[int],
        options: StructuredOutputsConfig | None = None,
    ) -> None:
        options = options or StructuredOutputsConfig()
        chosen = msgspec.json.encode(options).decode()
        self._start_seconds = START_SECONDS[options.backend]
        self._command = [
            *(sys.executable, "-P", "-m", _MODULE),
            *("--parent", str(os.getpid()), "--tokenizer", str(tokenizer_file)),
            *("--vocab-size", str(vocab_size), "--eos", *map(str, eos_token_ids)),
            *("--options", chosen),
        ]
        self._lock = threading.Lock()
        self._worker: Worker | None = None
        self._ending: weakref.finalize[[Worker], GrammarTrial] | None = None

    def start(self) -> None:
        """Start the worker without waiting for it, if there is none."""
        with self._lock:
            self._running()

    def check(self, constraint: StructuredOutput) -> None:
        """Compile a constraint in the worker.

        Raises:
            InvalidRequest: it is refused, or the worker dies over it twice.
        """
        message = msgspec.msgpack.encode(constraint)
        with self._lock:
            answer = self._ask(message)
            if answer is None and self._worker is not None and self._worker.poll() is not None:
                # It had just ended for want of work, or was killed from outside: what a constraint
                # may take is the matter of the worker's child.
                answer = self._ask(message)
            if answer is None:
                self.close()
                raise InvalidRequest(TOO_MUCH, _PARAM)
        refusal = msgspec.msgpack.decode(answer, type=str | None)
        if refusal is not None:
            raise InvalidRequest(refusal, _PARAM)

    def close(self) -> None:
        """End the worker; the next `check` starts another one."""
        if self._ending is not None:
            self._ending()
        self._ending = self._worker = None

    def _ask(self, message: bytes) -> bytes | None:
        """The worker's answer, or None if it died or takes too long."""
        deadline = time.monotonic() + WALL_SECONDS + self._start_seconds
        worker = self._running()
        if worker.stdin is None or worker.stdout is None:
            return None
        try:
            worker.stdin.write(len(message).to_bytes(_LENGTH_BYTES, "little") + message)
            worker.stdin.flush()
        except OSError:
            worker.wait()
            return None
        try:
            head = _read(worker.stdout, _LENGTH_BYTES, deadline)
            size = 0 if head is None else int.from_bytes(head, "little")
            body = None if head is None else _read(worker.stdout, size, deadline)
        except (OSError, ValueError):  # closed meanwhile by another thread
            return None
        if body is None and time.monotonic() < deadline:
            worker.wait()
        return body

    def _running(self) -> Worker:
        if self._worker is None or self._worker.poll() is not None:
            self.close()
            self._worker = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                process_group=0,
            )
            self._ending = weakref.finalize(self, _end, self._worker)
        return self._worker


def _read(source: IO[bytes], count: int, deadline: float) -> bytes | None:
    data = b""
    while len(data) < count:
        ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
        more = os.read(source.fileno(), count - len(data)) if ready else b""
        if not more:
            return None
        data += more
    return data


def _end(worker: Worker) -> None:
    """End a worker and the child that it may be waiting for."""
    if worker.poll() is None:
        os.killpg(worker.pid, signal.SIGKILL)
    worker.communicate()
