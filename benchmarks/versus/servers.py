"""HTTP servers as engines, driven by ortloom's own lean client: the same one for all."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.versus.cases import Case, Prompts
from benchmarks.versus.engines import Engine
from benchmarks.versus.process import MeasuredProcess, check_count
from benchmarks.versus.workers.protocol import TOP
from ortloom.bench.event_loop import run as run_loop
from ortloom.bench.generation import Record, Target, error_text, generate
from ortloom.bench.http_client import HttpClient
from ortloom.bench.samples import Sample
from ortloom.bench.startup import free_port

START_SECONDS = 900.0
POLL_SECONDS = 0.01
WARM_UP = list(range(300, 316))


class Server(MeasuredProcess):
    """A server on a free loopback port, healthy when the constructor returns.

    `startup` is the time (s) from the start of the process to the answer of a first completion,
    sent at the first 200 of /health (`health`, s).
    """

    def __init__(self, engine: Engine, logs: Path) -> None:
        self.port = free_port()
        super().__init__(engine, [part.format(port=self.port) for part in engine.command], logs)
        self.version = ""
        try:
            run_loop(self._until_healthy())
            self.health = time.perf_counter() - self.begin
            self.complete([WARM_UP], 2)
            self.startup = time.perf_counter() - self.begin
        except BaseException:
            self.stop()
            raise

    async def _until_healthy(self) -> None:
        client = HttpClient(f"http://127.0.0.1:{self.port}")
        end = time.monotonic() + START_SECONDS
        try:
            while time.monotonic() < end:
                if self.process.poll() is not None:
                    raise self.failure(f"exited with {self.process.returncode}")
                try:
                    if (await client.get("/health")).status == 200:
                        return
                except OSError:
                    pass  # not listening yet
                await asyncio.sleep(POLL_SECONDS)
        finally:
            client.close()
        raise self.failure(f"not healthy within {START_SECONDS:g} s")

    def complete(self, prompts: Prompts, new: int) -> list[Record]:
        """Streamed completions of token-id prompts, all sent at once.

        Raises:
            EngineFailed: a request failed.
        """
        records = run_loop(self._complete(prompts, new))
        for record in records:
            if record.error:
                raise self.failure(record.error)
        return records

    async def _complete(self, prompts: Prompts, new: int) -> list[Record]:
        client = HttpClient(f"http://127.0.0.1:{self.port}")
        name = self.engine.model_name
        try:
            jobs = []
            for i, ids in enumerate(prompts):
                target = Target(
                    api="completions",
                    path="/v1/completions",
                    models=(name,),
                    ignore_eos=True,
                    fields={"prompt": ids, "temperature": 0, **self.engine.fields},
                )
                sample = Sample(prompt="", prompt_len=len(ids), output_len=new)
                jobs.append(generate(client, target, sample, name, str(i)))
            return list(await asyncio.gather(*jobs))
        finally:
            client.close()

    def run(self, case: Case, prompts: Prompts) -> dict[str, float]:
        """As Worker.run; times as the client sees them, counts from the servers' usage."""
        records = self.complete(prompts, case.new)
        begin = min(record.start for record in records)
        run = {
            "first": min(r.start + (r.ttft or r.latency) for r in records) - begin,
            "last": max(r.start + r.latency for r in records) - begin,
            "tokens": float(sum(record.output_tokens or 0 for record in records)),
        }
        check_count(self, run, len(prompts) * case.new)
        return run

    def score(self, ids: Sequence[int], path: Path) -> str:
        """Writes the likeliest tokens of each position, by the server's `prompt_logprobs`."""
        run_loop(self._score(ids, path))
        return "top"

    async def _score(self, ids: Sequence[int], path: Path) -> None:
        client = HttpClient(f"http://127.0.0.1:{self.port}")
        body = {
            "model": self.engine.model_name,
            "prompt": list(ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": TOP,
        }
        try:
            reply = await client.post("/v1/completions", msgspec.json.encode(body))
        finally:
            client.close()
        if reply.status != 200:
            raise self.failure(f"prompt_logprobs: HTTP {reply.status} {error_text(reply.body)}")
        found_ids, found = [], []
        for position in msgspec.json.decode(reply.body)["choices"][0]["prompt_logprobs"][1:]:
            ranked = sorted(position.items(), key=lambda item: item[1]["rank"])[:TOP]
            found_ids.append([int(token) for token, _ in ranked])
            found.append([entry["logprob"] for _, entry in ranked])
        with path.open("wb") as file:
            np.savez(file, ids=np.array(found_ids), logprobs=np.array(found, np.float32))
