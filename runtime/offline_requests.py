"""Requests of one offline call: n samples each, run together, gathered into RequestOutput."""

import asyncio
import itertools
import time
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from ortloom.models.tokenizer import Tokenizer
from ortloom.runtime.completion_builder import CompletionBuilder, position_logprobs
from ortloom.runtime.messages import EngineRequest
from ortloom.runtime.request_output import RequestMetrics, RequestOutput
from ortloom.runtime.sampling_params import SamplingParams
from ortloom.runtime.streaming_client import StreamingClient


@dataclass(frozen=True, slots=True)
class OfflineJob:
    """One prompt: its text if it came as text, its ids, its checked parameters."""

    text: str | None
    token_ids: list[int]
    params: SamplingParams


class OfflineRequests:
    """Sends jobs to a client and follows their samples.

    Args:
        client: started; used on its own loop only.
        tokenizer: None = no text.
    """

    def __init__(self, client: StreamingClient, tokenizer: Tokenizer | None) -> None:
        self._client = client
        self._tokenizer = tokenizer
        self._serial = itertools.count()

    async def generate_all(
        self,
        jobs: Sequence[OfflineJob],
        priority: int,
        cache_salt: str | None,
    ) -> list[RequestOutput]:
        """All jobs together; results in their order.

        Raises:
            InvalidRequest, QueueFull, EngineDead, RequestFailed: the first failure; the other
                requests are ended.
        """
        # A group, so that the first failure ends the other requests of the call.
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._generate_one(job, priority, cache_salt)) for job in jobs
                ]
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _generate_one(
        self, job: OfflineJob, priority: int, cache_salt: str | None
    ) -> RequestOutput:
        params = job.params
        name = str(next(self._serial))
        arrival = time.monotonic()
        samples = []
        try:
            async with asyncio.TaskGroup() as group:
                for index in range(params.n):
                    request = EngineRequest(
                        name if params.n == 1 else f"{index}_{name}",
                        job.token_ids,
                        msgspec.structs.replace(
                            params, n=1, sample_index=params.sample_index + index
                        ),
                        arrival,
                        priority,
                        cache_salt,
                    )
                    builder = CompletionBuilder(index, params, job.token_ids, self._tokenizer)
                    samples.append(builder)
                    group.create_task(self._follow(request, builder))
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        return self._result(name, job, samples, arrival)

    async def _follow(self, request: EngineRequest, builder: CompletionBuilder) -> None:
        async with aclosing(self._client.generate(request)) as outputs:
            async for output in outputs:
                if builder.push(output):
                    await self._client.abort([request.request_id], "stop")
                    return

    def _result(
        self,
        name: str,
        job: OfflineJob,
        samples: list[CompletionBuilder],
        arrival: float,
    ) -> RequestOutput:
        first = samples[0]
        times = [s.times for s in samples]
        prompt_logprobs = None
        if first.prompt_logprobs is not None:
            prompt_logprobs = [
                None if entry is None else position_logprobs(entry, self._tokenizer)
                for entry in first.prompt_logprobs
            ]
        return RequestOutput(
            request_id=name,
            prompt=job.text,
            prompt_token_ids=job.token_ids,
            prompt_logprobs=prompt_logprobs,
            outputs=[s.completion for s in samples],
            finished=True,
            metrics=RequestMetrics(
                arrival_time=arrival,
                first_scheduled_time=min(t.first_scheduled for t in times),
                first_token_time=min(t.first_token for t in times),
                last_token_time=max(t.last_token for t in times),
                num_cached_tokens=first.num_cached_tokens,
                num_preemptions=sum(s.num_preemptions for s in samples),
            ),
            num_cached_tokens=first.num_cached_tokens,
        )
