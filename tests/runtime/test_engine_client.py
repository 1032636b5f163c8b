"""The contract of EngineClient: one suite against the process and the thread."""

import asyncio

import pytest
from engines import SLOW, collect, process_client, run, thread_client, until
from fakes import FakeModelRunner, make_config, make_request, solo_tokens

from ortloom.errors import EngineDead, InvalidRequest, QueueFull, RequestFailed
from ortloom.models.thinking import Thinking
from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.in_process_client import InProcessClient
from ortloom.runtime.sampling_params import RepetitionDetection
from ortloom.runtime.zmq_client import ZmqClient

PROMPT = list(range(8, 48))


@pytest.fixture(params=["process", "thread"])
def connect(request, address):
    maker = process_client if request.param == "process" else thread_client
    return lambda **options: maker(address, **options)


def test_many_requests_at_once_each_get_their_own_tokens(connect):
    async def body():
        async with connect() as client:
            assert client.ready.num_blocks == 64
            assert client.dead is None
            prompts = [PROMPT[i:] for i in range(12)]
            jobs = [collect(client, make_request(f"r{i}", p, 9)) for i, p in enumerate(prompts)]
            for prompt, (tokens, last) in zip(prompts, await asyncio.gather(*jobs), strict=True):
                assert tokens == solo_tokens(prompt, 9)
                assert last.finish_reason == "length"
            assert client.num_streams == 0
            stats = await client.fetch_stats()
            assert stats.generation_tokens == 12 * 9
            assert (stats.num_requests_running, stats.kv_cache_usage) == (0, 0.0)

    run(body())


def test_logprobs_survive_merging(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            request = make_request("r", PROMPT, 40, logprobs=0, prompt_logprobs=0)
            stream = client.generate(request)
            first = await anext(stream)
            await until(lambda: client.stats.num_requests_running == 0)
            rest = [output async for output in stream]
            assert len(rest) == 1  # all that came while nobody read
            tokens = first.new_token_ids + rest[0].new_token_ids
            logprobs = first.logprobs + rest[0].logprobs
            assert tokens == solo_tokens(PROMPT, 40)
            assert [entry.token_ids[0] for entry in logprobs] == tokens
            assert len(first.prompt_logprobs) == len(PROMPT)

    run(body())


def test_refusals_are_raised_before_the_first_output(connect):
    async def body():
        async with connect(max_num_queued_reqs=1, runner=SLOW) as client:
            with pytest.raises(InvalidRequest, match="64") as caught:
                await collect(client, make_request("bad", [64], 4))
            assert caught.value.param == "prompt"
            stream = client.generate(make_request("r", PROMPT, 500))
            await anext(stream)
            with pytest.raises(QueueFull):
                await collect(client, make_request("late", PROMPT, 4))
            with pytest.raises(InvalidRequest, match="in use"):
                await collect(client, make_request("r", PROMPT, 4))
            await stream.aclose()

    run(body())


def test_closing_the_iterator_aborts_the_request(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            stream = client.generate(make_request("r", PROMPT, 2000))
            await anext(stream)
            assert client.stats.num_requests_running == 1
            await stream.aclose()
            await until(lambda: client.stats.num_requests_running == 0)
            stats = await client.fetch_stats()
            assert stats.finished["abort"] == 1
            assert stats.kv_cache_usage == 0.0

    run(body())


def test_requests_that_are_left_together_end_with_one_message(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            streams = [client.generate(make_request(f"r{i}", [8 + i], 50)) for i in range(12)]
            await asyncio.gather(*(anext(stream) for stream in streams))
            sent, post = [], client._post
            client._post = lambda message: (sent.append(message), post(message))
            await asyncio.gather(*(stream.aclose() for stream in streams))
            assert await collect(client, make_request("r3", PROMPT, 2)) is not None
            assert [type(message).__name__ for message in sent] == ["EngineAbort", "EngineRequest"]
            assert sorted(sent[0].request_ids) == sorted(f"r{i}" for i in range(12))
            last = client.generate(make_request("r4", PROMPT, 50))
            await anext(last)
            await last.aclose()
            await until(lambda: client.stats.num_requests_running == 0)

    run(body())


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"extra_args": {"deep": [{"a": 2**64}]}}, "vllm_xargs"),
        ({"repetition_detection": RepetitionDetection(2, 1, 10**30)}, "repetition_detection"),
        ({"thinking": Thinking(end="x", budget=-(2**70))}, "thinking_token_budget"),
    ],
    ids=["vllm_xargs", "repetition_detection", "thinking"],
)
def test_numbers_that_cannot_be_sent_are_refused_by_name(fields, name):
    async def body():
        client = ZmqClient("inproc://nowhere")
        with pytest.raises(InvalidRequest, match=f"{name} .*64 bits") as caught:
            await anext(client.generate(make_request("r", PROMPT, 4, **fields)))
        assert caught.value.param == name
        assert client.num_streams == 0

    run(body())


def test_cancelling_the_reader_aborts_the_request(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            job = asyncio.create_task(collect(client, make_request("r", PROMPT, 2000)))
            await until(lambda: client.stats.num_requests_running == 1)
            job.cancel()
            await asyncio.gather(job, return_exceptions=True)
            await until(lambda: client.stats.num_requests_running == 0)

    run(body())


def test_abort_ends_the_iterator_with_its_reason(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            for reason in ("abort", "stop"):
                job = asyncio.create_task(collect(client, make_request(reason, PROMPT, 2000)))
                await until(lambda: client.stats.num_requests_running == 1)
                await client.abort([reason, "unknown"], reason)
                assert (await job)[1].finish_reason == reason
                await until(lambda: client.stats.num_requests_running == 0)

    run(body())


def test_reset_prefix_cache(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            assert await client.reset_prefix_cache()
            stream = client.generate(make_request("r", PROMPT, 2000))
            await anext(stream)
            assert not await client.reset_prefix_cache()
            assert await client.reset_prefix_cache(reset_running_requests=True)
            await stream.aclose()

    run(body())


def test_server_info_names_the_provider(connect):
    async def body():
        async with connect() as client:
            info = await client.server_info()
            assert info["provider"] == "fake"
            assert info["losing.cuda"] == "no device"

    run(body())


def test_a_dead_engine_raises_everywhere(connect):
    async def body():
        async with connect(runner=SLOW) as client:
            job = asyncio.create_task(collect(client, make_request("r", PROMPT, 2000)))
            await until(lambda: client.stats.num_requests_running == 1)
            client.mark_dead("the supervisor says so")
            with pytest.raises(EngineDead, match="supervisor"):
                await job
            with pytest.raises(EngineDead):
                await collect(client, make_request("s", PROMPT, 2))
            with pytest.raises(EngineDead):
                await client.reset_prefix_cache()
            assert client.dead == "the supervisor says so"
            assert client.ready is None

    run(body())


# ---- the thread


def test_a_load_failure_is_kept_and_raised():
    async def body():
        def load():
            raise InvalidRequest("no such thing")

        client = InProcessClient(load)
        await client.start()
        with pytest.raises(EngineDead, match="no such thing"):
            await client.wait_ready()
        assert isinstance(client.failure, InvalidRequest)
        await client.close()

    run(body())


def test_a_step_fault_reaches_the_reader_as_request_failed():
    async def body():
        runner = FakeModelRunner()
        runner.faults = {2}
        client = InProcessClient(lambda: EngineCore(make_config(), runner))
        await client.start()
        with pytest.raises(RequestFailed) as caught:
            await collect(client, make_request("r", PROMPT, 8))
        assert "injected" not in str(caught.value)
        tokens, _ = await collect(client, make_request("s", PROMPT, 8))
        assert tokens == solo_tokens(PROMPT, 8)
        await client.close()

    run(body())
