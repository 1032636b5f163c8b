"""All samples of one API request at once: engine requests out, pieces in the order they come.

Whatever ends the iteration (the last piece, an error, a client that left) ends every engine
request that is still open.
"""

import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import ExitStack, aclosing
from dataclasses import dataclass

from ortloom.errors import InvalidRequest
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.client import EngineClient
from ortloom.runtime.messages import EngineRequest
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.metrics import FrontMetrics, RequestMetrics
from ortloom.server.openai.beam_search import BeamOptions, beam_pieces
from ortloom.server.openai.interleave import Interleaved
from ortloom.server.openai.output_log import OutputLog
from ortloom.server.openai.request_timing import RequestTiming
from ortloom.server.openai.sample import Piece, SampleText
from ortloom.server.openai.sampling import ENGINE_ANSWERED_WITHOUT_PARAM, for_sample
from ortloom.server.openai.shortcut import PieceSink, Shortcut
from ortloom.server.tracing import RequestTrace


@dataclass(slots=True, frozen=True)
class PromptJob:
    """One prompt with its n samples.

    Attributes:
        token_ids: the prompt.
        text: the prompt's text as given, None for token-id prompts.
        max_tokens: output limit of each sample.
    """

    token_ids: list[int]
    text: str | None
    max_tokens: int


@dataclass(slots=True, frozen=True)
class GenerationJob:
    """One API request, ready for the engine.

    `response_id` is the id the client sees; `n` samples are made for each prompt, and `at_once` of
    all samples are in the engine at a time (None = all). `outputs` logs them, `timing` measures
    them for the reply, `trace` for spans; None = nobody does.
    """

    response_id: str
    prompts: list[PromptJob]
    params: SamplingParams
    n: int
    priority: int
    cache_salt: str | None
    arrival: float
    beams: BeamOptions | None = None  # None = sampling
    at_once: int | None = None
    outputs: OutputLog | None = None
    timing: RequestTiming | None = None
    trace: RequestTrace | None = None

    def metrics(self) -> dict[str, float | None] | None:
        """The `metrics` member of the reply."""
        return None if self.timing is None else self.timing.body()

    @property
    def followed(self) -> bool:
        """Whether anybody wants `note`."""
        return not (self.outputs is None and self.timing is None and self.trace is None)

    def note(self, piece: Piece) -> None:
        """Tell those who follow the samples of a piece."""
        if self.outputs is not None:
            self.outputs.note(piece)
        if self.timing is not None:
            self.timing.note(piece)
        if self.trace is not None:
            self.trace.note(piece)

    def engine_requests(self) -> Iterator[EngineRequest]:
        """One request a sample, in the order of choice indexes. Their ids are unique even if the
        client repeats a request id. Samples that are begun late arrive late: in the engine's queue
        they do not pass requests that came meanwhile."""
        unique = uuid.uuid4().hex[:8]
        total = len(self.prompts) * self.n
        at_once = total if self.at_once is None else self.at_once
        for number, prompt in enumerate(self.prompts):
            for sample in range(self.n):
                index = number * self.n + sample
                yield EngineRequest(
                    request_id=f"{self.response_id}-{unique}-{index}",
                    prompt_token_ids=prompt.token_ids,
                    sampling=for_sample(self.params, prompt.max_tokens, sample),
                    arrival_time=self.arrival if index < at_once else time.monotonic(),
                    priority=self.priority,
                    cache_salt=self.cache_salt,
                )


async def generate(
    job: GenerationJob,
    client: EngineClient,
    tokenizer: Tokenizer | None,
    metrics: FrontMetrics,
    sink: PieceSink | None = None,
) -> AsyncGenerator[Piece, None]:
    """The pieces of all samples, interleaved as the engine makes them.

    Args:
        job: what to generate.
        client: of the engine.
        tokenizer: None = no text.
        metrics: of the front.
        sink: gets pieces while the reader waits for one and the sink is ready; the others come
            here, in order.

    Raises:
        InvalidRequest, QueueFull, EngineDead, RequestFailed: as `EngineClient.generate`.
    """
    with ExitStack() as stack:
        measured = [
            stack.enter_context(
                metrics.request(
                    prompt_tokens=len(prompt.token_ids),
                    max_tokens=prompt.max_tokens,
                    n=job.n,
                    arrival=job.arrival,
                )
            )
            for prompt in job.prompts
        ]
        if job.beams is not None:
            found = beam_pieces(job, job.beams, client, tokenizer)
            async with aclosing(found):
                async for piece in found:
                    measured[piece.index // job.n].on_output(piece.output, time.monotonic())
                    if job.outputs is not None:
                        job.outputs.note(piece)
                    yield piece
            return
        several = Interleaved(job.at_once) if len(job.prompts) * job.n > 1 else None

        def stream_of(index: int, request: EngineRequest) -> AsyncGenerator[Piece, None]:
            text = SampleText(index, tokenizer, request.prompt_token_ids, request.sampling)
            counts = measured[index // job.n]
            shortcut = None
            if sink is not None:
                clear = None if several is None else several.clear
                note = job.note if job.followed else None
                shortcut = Shortcut(text, counts, note, sink, clear)
            return _sample(request, client, text, counts, shortcut)

        streams = (stream_of(i, request) for i, request in enumerate(job.engine_requests()))
        merged = next(streams) if several is None else several.pieces(streams)
        async with aclosing(merged):
            async for piece in merged:
                job.note(piece)
                yield piece


async def _sample(
    request: EngineRequest,
    client: EngineClient,
    text: SampleText,
    measured: RequestMetrics,
    shortcut: Shortcut | None,
) -> AsyncGenerator[Piece, None]:
    outputs = client.generate(request) if shortcut is None else client.generate(request, shortcut)
    try:
        async for output in outputs:
            piece = None if shortcut is None else shortcut.last
            if piece is None:
                piece = text.push(output)
                measured.on_output(piece.output, time.monotonic())
            yield piece
            if text.stopped:
                await client.abort([request.request_id], "stop")
                return
    except InvalidRequest as error:
        if error.param in ENGINE_ANSWERED_WITHOUT_PARAM:
            error.param = None
        raise
    finally:
        await _close(outputs)


async def _close(outputs: AsyncIterator[object]) -> None:
    """Close an iterator that may be a generator; closing ends the engine's request."""
    if isinstance(outputs, AsyncGenerator):
        await outputs.aclose()
