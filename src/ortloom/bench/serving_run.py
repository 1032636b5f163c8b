"""Running a load against a server: readiness, test request, warm-ups, the measured requests."""

import asyncio
import random
import time
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Literal

import msgspec

from ortloom.bench.generation import Record, Target, describe, error_text, generate
from ortloom.bench.http_client import HttpClient, Reply
from ortloom.bench.progress import Progress
from ortloom.bench.samples import Sample, Workload
from ortloom.bench.speculation import SpecCounters, fetch_counters
from ortloom.errors import BenchmarkFailed
from ortloom.logs import say
from ortloom.models.tokenizer import Tokenizer

_RETRY_SECONDS = 0.25


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How requests are sent. `arrivals` are seconds after the start, one a sample; at most
    `max_concurrency` requests are in flight. `pick` gives each request its model of several."""

    arrivals: list[float]
    max_concurrency: int | None = None
    num_warmups: int = 0
    pick: Literal["random", "round-robin"] = "random"
    seed: int = 0
    profile: bool = False
    hide_progress: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """Records in the order of the samples, seconds they took together, and what speculation did
    meanwhile (None where the server drafted nothing)."""

    records: list[Record]
    duration: float
    speculation: SpecCounters | None


class ServedModel(msgspec.Struct):
    """A card of /v1/models; `root` is where the server has the model from."""

    id: str
    root: str | None = None


class _ModelList(msgspec.Struct):
    data: list[ServedModel]


async def first_model(client: HttpClient, wait_seconds: float) -> ServedModel:
    """The first model the server lists.

    Raises:
        BenchmarkFailed: the server cannot be reached within the time, or lists none.
    """
    reply = await _answer(client, wait_seconds)
    if reply.status != 200:
        raise BenchmarkFailed(
            f"/v1/models answered HTTP {reply.status}: {error_text(reply.body)} "
            "(--model names the model without asking)"
        )
    models = _cards(reply)
    if not models:
        raise BenchmarkFailed("/v1/models lists no model; name one with --model")
    return models[0]


async def listed_model(client: HttpClient, name: str, wait_seconds: float) -> ServedModel | None:
    """The server's card of a model, or None where it has none.

    Raises:
        BenchmarkFailed: the server cannot be reached within the time.
    """
    reply = await _answer(client, wait_seconds)
    cards = _cards(reply) if reply.status == 200 else []
    return next((card for card in cards if card.id == name), None)


def _cards(reply: Reply) -> list[ServedModel]:
    try:
        return msgspec.json.decode(reply.body, type=_ModelList).data
    except msgspec.MsgspecError:
        return []


async def _answer(client: HttpClient, wait_seconds: float) -> Reply:
    """The answer of /v1/models, asked again while the server is not up, for some seconds."""
    end = time.monotonic() + wait_seconds
    while True:
        try:
            reply = await client.get("/v1/models")
            if reply.status != 503 or time.monotonic() >= end:
                return reply
        except OSError as error:
            if time.monotonic() >= end:
                raise BenchmarkFailed(
                    f"the server at {client.url} cannot be reached: {describe(error)}"
                ) from None
        await asyncio.sleep(_RETRY_SECONDS)


async def run_load(
    client: HttpClient,
    target: Target,
    workload: Workload,
    load: Load,
    tokenizer: Tokenizer | None = None,
    wait_seconds: float = 0.0,
) -> Outcome:
    """Send a test request, warm-ups, then the samples.

    Args:
        client: connections to the server.
        target: path and common fields of the requests.
        workload: what is sent.
        load: when it is sent.
        tokenizer: counts the tokens of answers that came without usage.
        wait_seconds: how long the test request is tried again while it fails.

    Raises:
        BenchmarkFailed: the test request failed.
    """
    await _test_request(client, target, workload.trial, wait_seconds)
    if load.num_warmups:
        say(f"warming up with {load.num_warmups} requests")
        await _warm_up(client, target, workload.trial, load)
    before = await fetch_counters(client)
    if load.profile:
        await _profile(client, "/start_profile")
    say(f"sending {len(workload.samples)} requests")
    begin = time.perf_counter()
    records = await _send(client, target, workload.samples, load)
    duration = time.perf_counter() - begin
    if load.profile:
        await _profile(client, "/stop_profile")
    speculation = (await fetch_counters(client)).since(before)
    _count_missing(records, tokenizer)
    return Outcome(records, duration, speculation if speculation.drafts else None)


async def _test_request(
    client: HttpClient, target: Target, sample: Sample, wait_seconds: float
) -> None:
    say("sending a test request")
    end = time.monotonic() + wait_seconds
    while True:
        record = await generate(client, target, sample, target.models[0], "test")
        if record.success:
            return
        refused = record.error.startswith("HTTP 4")  # asking again would not mend it
        if refused or time.monotonic() >= end:
            raise BenchmarkFailed(f"the test request failed, nothing was measured: {record.error}")
        await asyncio.sleep(_RETRY_SECONDS)


async def _warm_up(client: HttpClient, target: Target, sample: Sample, load: Load) -> None:
    arrivals = [0.0] * load.num_warmups
    warm = msgspec.structs.replace(load, arrivals=arrivals, hide_progress=True)
    records = await _send(client, target, [sample] * load.num_warmups, warm, "warmup-")
    failures = [record.error for record in records if not record.success]
    if failures:
        say(f"warning: {len(failures)} warm-up requests failed: {failures[0]}")


async def _send(
    client: HttpClient, target: Target, samples: Sequence[Sample], load: Load, prefix: str = ""
) -> list[Record]:
    """Send every sample at its time; an interrupt cancels those in flight."""
    limit = asyncio.Semaphore(load.max_concurrency) if load.max_concurrency else nullcontext()
    models = _models(target, len(samples), load)
    begin = time.perf_counter()

    async def one(i: int) -> Record:
        async with limit:
            record = await generate(client, target, samples[i], models[i], f"{prefix}{i}")
        progress.step()
        return record

    with Progress(len(samples), load.hide_progress) as progress:
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[Record]] = []
            for i, at in enumerate(load.arrivals):
                pause = begin + at - time.perf_counter()
                if pause > 0:
                    await asyncio.sleep(pause)
                tasks.append(group.create_task(one(i)))
    return [task.result() for task in tasks]


def _models(target: Target, count: int, load: Load) -> list[str]:
    names = target.models
    if load.pick == "round-robin":
        return [names[i % len(names)] for i in range(count)]
    draw = random.Random(load.seed)
    return [draw.choice(names) for _ in range(count)]


async def _profile(client: HttpClient, path: str) -> None:
    try:
        reply = await client.post(path, b"")
    except OSError as error:
        raise BenchmarkFailed(f"{path}: {describe(error)}") from None
    if reply.status != 200:
        raise BenchmarkFailed(f"{path} answered HTTP {reply.status}: {error_text(reply.body)}")


def _count_missing(records: Sequence[Record], tokenizer: Tokenizer | None) -> None:
    """Token counts for answers without usage: the text's tokens, else its pieces."""
    missing = [record for record in records if record.success and record.output_tokens is None]
    for record in missing:
        if tokenizer is None:
            record.output_tokens = len(record.itls) + 1
        else:
            record.output_tokens = len(tokenizer.encode(record.text, add_special_tokens=False))
    if missing:
        how = "by pieces" if tokenizer is None else "with the tokenizer"
        say(f"warning: {len(missing)} answers came without usage; their tokens are counted {how}")
