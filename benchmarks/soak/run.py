"""The soak: workers that ask at random, and what must hold while they do and after."""

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from benchmarks.soak.answers import Answer, of_events, of_reply
from benchmarks.soak.asked import Asked, draw_requests

IDLE = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
WRONG = {"prompt": "x", "max_tokens": 2, "structured_outputs": {"regex": "("}}


@dataclass
class Report:
    """What was done, and what was wrong.

    Attributes:
        counts: requests by kind, tokens, rounds.
        wrong: one line each; empty = all is well.
        memory: resident bytes of each watched process at the end of each round.
    """

    counts: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    memory: dict[str, list[int]] = field(default_factory=dict)

    def growth(self) -> dict[str, int]:
        """Bytes that each process grew by after warm-up, the first half of the rounds."""
        grown = {}
        for name, values in self.memory.items():
            warm = (len(values) + 1) // 2
            grown[name] = max(values[warm:], default=0) - max(values[:warm])
        return grown


@dataclass
class Soak:
    """One run against a server.

    Attributes:
        url: of the server.
        pids: processes whose memory is watched, by name.
        seconds: how long the workers ask, over all rounds; solo runs are not counted.
        concurrent: workers.
        number: seed of everything.
        pool: different requests in a round.
        round_seconds: after this the pool is drawn anew.
    """

    url: str
    pids: dict[str, int]
    seconds: float = 20.0
    concurrent: int = 64
    number: int = 0
    pool: int = 24
    round_seconds: float = 20.0
    report: Report = field(default_factory=Report)

    async def run(self) -> Report:
        limits = httpx.Limits(max_connections=self.concurrent + 4)
        left, turn = self.seconds, 0
        async with httpx.AsyncClient(base_url=self.url, timeout=600, limits=limits) as client:
            while left > 0:
                await self._round(client, turn, min(left, self.round_seconds))
                left -= self.round_seconds
                turn += 1
        return self.report

    async def _round(self, client: httpx.AsyncClient, turn: int, seconds: float) -> None:
        pool = []
        for asked in draw_requests(self.number * 1000 + turn, self.pool):
            reply = await client.post(asked.path, json=asked.body)
            if reply.status_code != 200:
                self._note(f"solo run: {reply.status_code} {reply.text[:300]} for {asked.body}")
                continue
            pool.append((asked, of_reply(reply.json(), asked.chat), reply.json()))
        end = time.monotonic() + seconds
        workers = [
            self._worker(client, pool, random.Random(f"{self.number}/{turn}/{i}"), end)
            for i in range(self.concurrent)
        ]
        await asyncio.gather(*workers)
        await self._idle(client)
        for name, pid in self.pids.items():
            self.report.memory.setdefault(name, []).append(resident(pid))
        self.report.counts["rounds"] += 1

    async def _worker(
        self, client: httpx.AsyncClient, pool: list[Any], chance: random.Random, end: float
    ) -> None:
        while time.monotonic() < end and len(self.report.wrong) < 20:
            asked, wanted, solo = chance.choice(pool)
            how = chance.random()
            try:
                if how < 0.04:
                    await self._leave(client, asked, chance)
                elif how < 0.08:
                    reply = await client.post("/v1/completions", json=WRONG)
                    if reply.status_code != 400:
                        self._note(f"a bad regex is answered {reply.status_code}")
                    self.report.counts["refused"] += 1
                elif how < 0.6 and "prompt_logprobs" not in asked.body:
                    await self._streamed(client, asked, wanted, solo, chance)
                else:
                    await self._whole(client, asked, wanted, solo)
            except (AssertionError, httpx.HTTPError, ValueError, KeyError) as error:
                self._note(f"{type(error).__name__}: {error} for {asked.body}")

    async def _whole(
        self, client: httpx.AsyncClient, asked: Asked, wanted: Answer, solo: Any
    ) -> None:
        reply = await client.post(asked.path, json=asked.body)
        if reply.status_code != 200:
            self._note(f"{reply.status_code} {reply.text[:300]} for {asked.body}")
            return
        told = reply.json()
        self._compare(asked, of_reply(told, asked.chat), wanted, "whole")
        if _prompt_scores(told, asked) != _prompt_scores(solo, asked):
            self._note(f"other prompt_logprobs than alone for {asked.body}")

    async def _streamed(
        self,
        client: httpx.AsyncClient,
        asked: Asked,
        wanted: Answer,
        solo: Any,
        chance: random.Random,
    ) -> None:
        with_usage = chance.random() < 0.5
        body = {**asked.body, "stream": True, "stream_options": {"include_usage": with_usage}}
        if chance.random() < 0.3:
            body["stream_interval"] = chance.randint(1, 8)
        async with client.stream("POST", asked.path, json=body) as reply:
            lines = [line async for line in reply.aiter_lines()]
        if reply.status_code != 200:
            self._note(f"{reply.status_code} {lines} for {body}")
            return
        answer, usage = of_events(lines, asked.chat, with_usage)
        self._compare(asked, answer, wanted, "streamed")
        counted = ("prompt_tokens", "completion_tokens")
        if usage is not None and any(usage[name] != solo["usage"][name] for name in counted):
            self._note(f"usage {usage}, alone {solo['usage']} for {body}")

    async def _leave(self, client: httpx.AsyncClient, asked: Asked, chance: random.Random) -> None:
        """Ask for much and go away after a few chunks."""
        body = {**asked.body, "stream": True, "max_tokens": 100, "ignore_eos": True}
        body.pop("prompt_logprobs", None)
        left = chance.randint(0, 6)
        async with client.stream("POST", asked.path, json=body) as reply:
            async for _ in reply.aiter_lines():
                left -= 1
                if left < 0:
                    break
        self.report.counts["left"] += 1

    def _compare(self, asked: Asked, got: Answer, wanted: Answer, how: str) -> None:
        counts = self.report.counts
        counts[how] += 1
        counts["tokens"] += sum(len(choice["token_ids"]) for choice in got)
        for name in ("logprobs", "stop", "structured_outputs", "response_format", "seed"):
            counts[name] += asked.body.get(name) is not None
        counts["n"] += asked.body.get("n", 1) > 1
        if got != wanted:
            self._note(f"{how} {_difference(got, wanted)} for {asked.body}")
        for choice in got:
            ended = choice["finish_reason"] == "stop" and choice["stop_reason"] is None
            if ended and not asked.fits_constraint(choice["text"]):
                self._note(f"{choice['text']!r} is not allowed by {asked.body}")

    async def _idle(self, client: httpx.AsyncClient) -> None:
        """Wait until nothing is running; note what is still held."""
        held: dict[str, float] = {}
        for _ in range(300):
            held = gauges((await client.get("/metrics")).text)
            if not any(held.values()):
                return
            await asyncio.sleep(0.1)
        self._note(f"still held with nothing asked: {held}")

    def _note(self, what: str) -> None:
        self.report.wrong.append(what)


def gauges(text: str) -> dict[str, float]:
    """The gauges that must be 0 when nothing is asked, summed over their labels."""
    found = dict.fromkeys(IDLE, 0.0)
    for line in text.splitlines():
        name = line.partition("{")[0].removeprefix("vllm:")
        if name in found:
            found[name] += float(line.rpartition(" ")[2])
    return found


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise LookupError(pid)


def _prompt_scores(reply: dict[str, Any], asked: Asked) -> Any:
    if asked.chat:
        return reply.get("prompt_logprobs")
    return [choice.get("prompt_logprobs") for choice in reply["choices"]]


def _difference(got: Answer, wanted: Answer) -> str:
    if len(got) != len(wanted):
        return f"{len(got)} choices, alone {len(wanted)}"
    for index, (left, right) in enumerate(zip(got, wanted, strict=True)):
        for name, value in left.items():
            if value != right[name]:
                return f"choice {index}: {name} {value!r}, alone {right[name]!r}"
    return "differs"
