"""Client side of one request: outputs that arrived and were not read yet."""

import asyncio
import time

from ortloom.errors import (
    EngineError,
    InvalidRequest,
    OrtloomError,
    QueueFull,
    RequestFailed,
)
from ortloom.runtime.client import OutputTaker
from ortloom.runtime.messages import EngineOutput, StepArrival, TokenLogprobs


def merge(older: EngineOutput, newer: EngineOutput) -> EngineOutput:
    """One output that says what two said; `older` is changed and returned."""
    older.new_token_ids = older.new_token_ids + newer.new_token_ids
    older.arrivals = older.arrivals + newer.arrivals
    if newer.logprobs is not None:
        older.logprobs = (older.logprobs or []) + newer.logprobs
    if newer.details is not None:
        older.details = (older.details or []) + newer.details
    if newer.masks is not None:
        older.masks = (older.masks or []) + newer.masks
    if newer.prompt_logprobs is not None:
        older.prompt_logprobs = newer.prompt_logprobs
    older.finish_reason = newer.finish_reason
    older.stop_reason = newer.stop_reason
    older.num_cached_tokens = newer.num_cached_tokens
    older.num_preemptions = newer.num_preemptions
    if newer.times is not None:
        older.times = newer.times
    older.error = newer.error
    older.error_kind = newer.error_kind
    older.error_param = newer.error_param
    return older


def error_of(output: EngineOutput) -> OrtloomError | None:
    """The exception a failed output stands for."""
    if output.finish_reason != "error":
        return None
    text = output.error or "The request failed inside the engine."
    if output.error_kind == "invalid":
        return InvalidRequest(text, output.error_param)
    if output.error_kind == "capacity":
        return QueueFull(text)
    return RequestFailed(text)


class OutputStream:
    """A one-place mailbox: outputs that are not read in time are merged, so a slow reader costs
    memory for its tokens only. Belongs to one event loop.

    Args:
        taker: see `EngineClient.generate`.
    """

    def __init__(self, taker: OutputTaker | None = None) -> None:
        self._taker = taker
        self._output: EngineOutput | None = None
        self._parts: list[TokenLogprobs | None] = []
        self._error: EngineError | None = None
        self._taker_error: Exception | None = None
        self._news = asyncio.Event()
        self._awaited = False
        self.ended = False

    def push(self, output: EngineOutput) -> bool:
        """Add an output; stamps when its tokens arrived. Parts wait for their output.

        Returns:
            `offer` is to be called once everything that is there has been pushed; until then the
            reader sleeps.
        """
        if output.part:
            self._parts += output.prompt_logprobs or ()
            return False
        if self._parts:
            output.prompt_logprobs = self._parts + (output.prompt_logprobs or [])
            self._parts = []
        if output.new_token_ids:
            output.arrivals = [StepArrival(time.monotonic(), len(output.new_token_ids))]
        self._output = output if self._output is None else merge(self._output, output)
        if self._taker is not None and self._awaited:
            return True
        self._news.set()
        return False

    def offer(self) -> None:
        """Let the taker have what is there, or else the reader."""
        if self._output is None or self._taker is None:
            return
        try:
            if self._awaited and self._taker(self._output):
                self._output = None
                return
        except Exception as error:
            self._taker_error = error
        self._news.set()

    def fail(self, error: EngineError) -> None:
        """End the stream with an error once what arrived before is read."""
        self._error = error
        self._news.set()

    async def next(self) -> EngineOutput:
        """The next output; `ended` is True once it was the last.

        Raises:
            InvalidRequest: the engine refuses the request.
            QueueFull: an admission limit is reached.
            RequestFailed: the request failed inside the engine.
            EngineDead: the engine is gone.
            Exception: what the taker raised; the request goes on in the engine.
        """
        self._awaited = not self._news.is_set()
        try:
            await self._news.wait()
        finally:
            self._awaited = False
        if self._taker_error is not None:
            raise self._taker_error
        if self._output is None:
            self.ended = True
            raise self._error or RequestFailed("The stream ended.")
        output, self._output = self._output, None
        if self._error is None:
            self._news.clear()
        error = error_of(output)
        self.ended = output.finish_reason is not None
        if error is not None:
            raise error
        return output
