"""Beam search over the engine: every step asks it for one token after each beam.

The likeliest 2 × width tokens after each beam are candidates; an end token completes a beam, the
best `width` others go on. A beam's score is its summed log probability over its length (prompt
included) to the power of the length penalty. Beams share their prefix through the engine's cache.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ortloom.errors import EngineDead, RequestFailed
from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.client import EngineClient
from ortloom.runtime.messages import EngineOutput, EngineRequest, FinishReason, TokenLogprobs
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.server.openai.sample import Piece

if TYPE_CHECKING:
    from ortloom.server.openai.generation import GenerationJob, PromptJob


@dataclass(frozen=True, slots=True)
class BeamOptions:
    """`width` beams are kept and returned."""

    width: int
    length_penalty: float


@dataclass(slots=True)
class Beam:
    """A beginning of the output: its tokens, their entries and the sum of their logprobs."""

    token_ids: list[int] = field(default_factory=list)
    entries: list[TokenLogprobs] = field(default_factory=list)
    sum_logprob: float = 0.0
    finish_reason: FinishReason = "length"
    stop_reason: int | None = None

    def followed_by(self, token: int, entry: TokenLogprobs) -> "Beam":
        """This beam and one more token, which is one of the entry's."""
        place = entry.token_ids.index(token)
        own = TokenLogprobs(
            [token, *entry.token_ids[1:]],
            [entry.logprobs[place], *entry.logprobs[1:]],
            [entry.ranks[place], *entry.ranks[1:]],
        )
        total = self.sum_logprob + entry.logprobs[place]
        return Beam([*self.token_ids, token], [*self.entries, own], total)


class BeamSearch:
    """The search after one prompt.

    Args:
        job: what was asked for.
        prompt: one of its prompts.
        options: width and length penalty.
        client: the engine.
    """

    def __init__(
        self, job: "GenerationJob", prompt: "PromptJob", options: BeamOptions, client: EngineClient
    ) -> None:
        self._job = job
        self._prompt = prompt
        self._options = options
        self._client = client
        params = job.params
        self._ends: frozenset[int] = frozenset()
        if not params.ignore_eos:
            self._ends = frozenset([*params.eos_token_ids, *params.secondary_eos_token_ids])
        self._step = SamplingParams(
            temperature=1.0, max_tokens=1, logprobs=2 * options.width, ignore_eos=True, seed=0
        )
        self.num_cached_tokens = 0

    async def run(self) -> list[Beam]:
        """The best beams, best first.

        Raises:
            InvalidRequest, QueueFull, EngineDead, RequestFailed: as `EngineClient.generate`.
        """
        width = self._options.width
        beams, completed = [Beam()], list[Beam]()
        for _ in range(self._prompt.max_tokens):
            entries = await self._next(beams)
            candidates = []
            for beam, entry in zip(beams, entries, strict=True):
                for token in dict.fromkeys(entry.token_ids[1:]):
                    made = beam.followed_by(token, entry)
                    if token in self._ends:
                        made.finish_reason, made.stop_reason = "stop", token
                        completed.append(made)
                    else:
                        candidates.append(made)
            beams = self._best(candidates)
            if not beams or self._decided(beams, completed):
                break
        return self._best(completed + beams)[:width]

    def _best(self, beams: list[Beam]) -> list[Beam]:
        return sorted(beams, key=self._score, reverse=True)[: self._options.width]

    def _score(self, beam: Beam) -> float:
        length = len(self._prompt.token_ids) + len(beam.token_ids)
        if beam.stop_reason is not None:
            length -= 1
        return float(beam.sum_logprob / length**self._options.length_penalty)

    def _decided(self, beams: list[Beam], completed: list[Beam]) -> bool:
        """Whether no beam that goes on can still get among the best: sums only fall, and the
        longest length divides them most."""
        if len(completed) < self._options.width or self._options.length_penalty < 0:
            return False
        worst = self._score(self._best(completed)[-1])
        longest = len(self._prompt.token_ids) + self._prompt.max_tokens
        reachable = longest**self._options.length_penalty
        return all(beam.sum_logprob / reachable < worst for beam in beams)

    async def _next(self, beams: list[Beam]) -> list[TokenLogprobs]:
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._ask(beam)) for beam in beams]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _ask(self, beam: Beam) -> TokenLogprobs:
        request = EngineRequest(
            request_id=f"{self._job.response_id}-{uuid.uuid4().hex[:12]}",
            prompt_token_ids=[*self._prompt.token_ids, *beam.token_ids],
            sampling=self._step,
            arrival_time=self._job.arrival,
            priority=self._job.priority,
            cache_salt=self._job.cache_salt,
        )
        outputs = self._client.generate(request)
        try:
            async for output in outputs:
                if output.finish_reason in ("abort", "error"):
                    raise RequestFailed(output.error or "The request was aborted.")
                if not beam.token_ids:
                    self.num_cached_tokens = output.num_cached_tokens
                if output.logprobs:
                    return output.logprobs[0]
        finally:
            if isinstance(outputs, AsyncGenerator):
                await outputs.aclose()
        raise EngineDead("The engine sent no token.")


async def beam_pieces(
    job: "GenerationJob", options: BeamOptions, client: EngineClient, tokenizer: Tokenizer | None
) -> AsyncGenerator[Piece, None]:
    """Each prompt's beams as one piece each, in the order of choice indexes.

    Raises:
        InvalidRequest, QueueFull, EngineDead, RequestFailed: as `EngineClient.generate`.
    """
    for number, prompt in enumerate(job.prompts):
        search = BeamSearch(job, prompt, options, client)
        for place, beam in enumerate(await search.run()):
            index = number * options.width + place
            yield _piece(index, beam, job, tokenizer, search.num_cached_tokens)


def _piece(
    index: int, beam: Beam, job: "GenerationJob", tokenizer: Tokenizer | None, cached: int
) -> Piece:
    """A beam as the reply of a choice: without its end token unless that was asked for."""
    params = job.params
    tokens, entries = beam.token_ids, beam.entries
    if beam.stop_reason is not None and not params.include_stop_str_in_output:
        tokens, entries = tokens[:-1], entries[:-1]
    text = "" if tokenizer is None else tokenizer.decode(tokens, params.skip_special_tokens)
    logprobs = []
    if params.logprobs is not None:
        logprobs = [_first(entry, params.logprobs) for entry in entries]
    output = EngineOutput(
        request_id=f"{job.response_id}-{index}",
        new_token_ids=tokens,
        logprobs=logprobs or None,
        finish_reason=beam.finish_reason,
        stop_reason=beam.stop_reason,
        num_cached_tokens=cached,
    )
    return Piece(index, text, tokens, logprobs, output, beam.finish_reason, beam.stop_reason)


def _first(entry: TokenLogprobs, count: int) -> TokenLogprobs:
    """The own token and the first `count` of an entry."""
    last = len(entry.token_ids) if count < 0 else 1 + count
    return TokenLogprobs(entry.token_ids[:last], entry.logprobs[:last], entry.ranks[:last])
