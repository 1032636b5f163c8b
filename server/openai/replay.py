"""An engine client that gives out what another server's engine made.

Derendering is the second half of answering a request. With this client that half is the very code
that answers requests here, so both give the same reply.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Literal

import msgspec
from sanic import Request
from sanic.response import BaseHTTPResponse

from ortloom.runtime.client import OutputTaker
from ortloom.runtime.messages import (
    EngineControl,
    EngineOutput,
    EngineReady,
    EngineRequest,
    EngineStats,
    TokenDetail,
    TokenLogprobs,
)
from ortloom.server.openai.wire_derender import GeneratedChoice, GeneratedPosition

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")


class ReplayClient:
    """Implements `EngineClient` over ready-made outputs.

    Args:
        ready: facts of the model.
        outputs: of each sample, in the order of choice indexes.
    """

    def __init__(
        self, ready: EngineReady | None, outputs: Sequence[Sequence[EngineOutput]]
    ) -> None:
        self.ready = ready
        self.dead: str | None = None
        self.stats = EngineStats()
        self._outputs = outputs

    async def start(self) -> None:
        """Nothing to connect to."""

    async def generate(
        self, request: EngineRequest, taker: OutputTaker | None = None
    ) -> AsyncGenerator[EngineOutput, None]:
        """The outputs of a sample, which the request's id ends with."""
        for output in self._outputs[int(request.request_id.rpartition("-")[2])]:
            yield msgspec.structs.replace(output, request_id=request.request_id)

    async def abort(
        self, request_ids: Sequence[str], finish_reason: Literal["abort", "stop"] = "abort"
    ) -> None:
        """Nothing runs."""

    async def reset_prefix_cache(self, reset_running_requests: bool = False) -> bool:
        """There is no cache."""
        return False

    async def control(self, call: EngineControl) -> dict[str, str]:
        """There is nothing to control."""
        return {}

    async def fetch_stats(self) -> EngineStats:
        """All zero."""
        return self.stats

    def mark_dead(self, reason: str) -> None:
        """It has no engine that could die."""

    async def close(self) -> None:
        """Nothing to disconnect from."""


def output_of(choice: GeneratedChoice) -> EngineOutput:
    """A choice as the engine's output."""
    content = choice.logprobs.content if choice.logprobs is not None else None
    reason: Any = choice.finish_reason if choice.finish_reason in FINISH_REASONS else None
    stop = choice.stop_reason if isinstance(choice.stop_reason, int) else None
    return EngineOutput(
        "",
        new_token_ids=list(choice.token_ids or ()),
        logprobs=None if content is None else [_position(entry) for entry in content],
        details=_details(content),
        masks=choice.sampling_mask,
        finish_reason=reason,
        stop_reason=stop,
    )


def unscored(token_ids: list[int], with_logprobs: bool) -> EngineOutput:
    """Earlier tokens of a stream, whose values are not needed any more."""
    blank = [TokenLogprobs([token], [0.0], [1]) for token in token_ids]
    return EngineOutput("", new_token_ids=token_ids, logprobs=blank if with_logprobs else None)


def _position(entry: GeneratedPosition) -> TokenLogprobs:
    rows = [entry, *entry.top_logprobs]
    return TokenLogprobs(
        [row.token_id for row in rows],
        [row.logprob for row in rows],
        [row.rank or 1 for row in rows],
    )


def _details(content: list[GeneratedPosition] | None) -> list[TokenDetail] | None:
    found = [
        TokenDetail(entry.raw_logprob, entry.processed_logprob, entry.rank or 1)
        for entry in content or ()
        if entry.raw_logprob is not None and entry.processed_logprob is not None
    ]
    return found if content and len(found) == len(content) else None


class EventCatcher:
    """Stands for the request of a stream and keeps the events written to it.

    Args:
        request: the real one, whose app and context it shares.
    """

    def __init__(self, request: Request) -> None:
        self.app = request.app
        self.ctx = request.ctx
        self.headers = request.headers
        self.stream = None
        self._data = bytearray()

    async def respond(self, *_: object, **__: object) -> "EventCatcher":
        """Begin the response."""
        return self

    async def send(self, data: bytes) -> None:
        """Take what is written."""
        self._data += data

    async def eof(self) -> None:
        """End the response."""

    def events(self) -> list[dict[str, Any]]:
        """The events so far, without the mark of the end."""
        lines = bytes(self._data).split(b"\n\n")
        found = [line[6:] for line in lines if line.startswith(b"data: {")]
        return [msgspec.json.decode(line) for line in found]


def reply_of(response: BaseHTTPResponse) -> dict[str, Any]:
    """The JSON body of a response."""
    body: dict[str, Any] = msgspec.json.decode(response.body or b"{}")
    return body
