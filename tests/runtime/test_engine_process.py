"""The engine process: start-up, failures, signals, idling, lost and slow clients."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import msgspec
import pytest
import zmq
from engines import HERE, SLOW, collect, end, process_client, run, spawn, until
from fakes import make_config, make_request, solo_tokens

from ortloom.errors import EngineDead, ProviderUnavailable, RequestFailed
from ortloom.runtime.engine_process import serve
from ortloom.runtime.messages import EngineControl, EngineReply
from ortloom.runtime.zmq_client import ZmqClient
from ortloom.runtime.zmq_endpoint import ZmqEndpoint

PROMPT = list(range(8, 48))


def test_a_client_may_come_before_the_engine_and_send_at_once(address):
    async def body():
        client = ZmqClient(address)
        await client.start()
        assert client.ready is None
        job = asyncio.create_task(collect(client, make_request("r", PROMPT, 4)))
        await asyncio.sleep(0)
        process = spawn(address)
        try:
            tokens, _ = await job
            assert tokens == solo_tokens(PROMPT, 4)
            await client.wait_ready()
            assert client.ready.engine_pid == process.pid
        finally:
            await client.close()
            assert end(process) == (0, "")

    run(body())


@pytest.mark.parametrize(
    ("failure", "line"),
    [
        ("expected", "ortloom: error: provider cuda cannot run here: no device"),
        ("bug", "ortloom: error: the engine could not start (ZeroDivisionError: oops)"),
    ],
)
def test_a_start_up_failure_is_one_line_and_the_exit_code(address, failure, line):
    process = spawn(address, failure=failure)
    code, text = process.wait(20), process.stderr.read()
    process.stderr.close()
    assert code == 1
    assert text.splitlines() == [line]


def test_a_start_up_failure_reaches_clients_that_are_connected(address, capsys):
    async def body():
        go = threading.Event()

        def factory(config):
            assert go.wait(20)
            raise ProviderUnavailable("no such provider here")

        engine = asyncio.create_task(asyncio.to_thread(serve, make_config(), address, factory))
        client = ZmqClient(address)
        await client.start()
        await until(lambda: client.connected)
        go.set()
        with pytest.raises(EngineDead, match="no such provider"):
            await client.wait_ready()
        assert await engine == ProviderUnavailable.exit_code
        await client.close()

    run(body())
    assert capsys.readouterr().err == "ortloom: error: no such provider here\n"


def test_a_wrong_configuration_is_one_line_and_exit_code_2(address):
    command = [sys.executable, "-m", "ortloom.runtime.engine_process", "--address", address]
    result = subprocess.run(command, input='{"model": 5}', capture_output=True, text=True)
    assert result.returncode == 2
    assert len(result.stderr.splitlines()) == 1
    assert "configuration" in result.stderr


def test_a_missing_bundle_is_one_line_and_exit_code_1(address, tmp_path):
    config = make_config()
    config = msgspec.structs.replace(
        config, model=msgspec.structs.replace(config.model, bundle=str(tmp_path / "nowhere"))
    )
    command = [sys.executable, "-m", "ortloom.runtime.engine_process", "--address", address]
    result = subprocess.run(command, input=msgspec.json.encode(config), capture_output=True)
    text = result.stderr.decode()
    assert result.returncode == 1, text
    assert "nowhere" in text
    assert "Traceback" not in text
    assert len(text.splitlines()) == 1


def test_sigterm_ends_requests_and_exits_0(address):
    async def body():
        process = spawn(address, runner=SLOW)
        client = ZmqClient(address)
        await client.start()
        job = asyncio.create_task(collect(client, make_request("r", PROMPT, 2000)))
        await until(lambda: client.stats.num_requests_running == 1)
        process.send_signal(signal.SIGTERM)
        _, last = await job
        assert last.finish_reason == "abort"
        assert await asyncio.to_thread(process.wait, 20) == 0
        assert process.stderr.read() == ""
        process.stderr.close()
        await client.close()

    run(body())


def test_sigterm_ends_an_idle_engine_at_once(address):
    async def body():
        process = spawn(address)
        client = ZmqClient(address)
        await client.start()
        await client.wait_ready()
        begin = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 20) == 0
        assert time.monotonic() - begin < 3
        process.stderr.close()
        await client.close()

    run(body())


def test_kill_of_the_engine_raises_engine_dead(address):
    async def body():
        process = spawn(address, runner=SLOW)
        client = ZmqClient(address)
        await client.start()
        job = asyncio.create_task(collect(client, make_request("r", PROMPT, 2000)))
        await until(lambda: client.stats.num_requests_running == 1)
        process.kill()
        with pytest.raises(EngineDead):
            await asyncio.wait_for(job, 5)
        assert client.dead is not None
        process.wait()
        process.stderr.close()
        await client.close()

    run(body())


def test_an_engine_that_cannot_compute_any_more_exits_1(address):
    async def body():
        process = spawn(address, runner={"break_at": 3})
        client = ZmqClient(address)
        await client.start()
        with pytest.raises((RequestFailed, EngineDead)):
            await collect(client, make_request("r", PROMPT, 20))
        assert await asyncio.to_thread(process.wait, 20) == 1
        await until(lambda: client.dead is not None)
        lines = process.stderr.read().splitlines()
        assert lines[-1] == "ortloom: error: the model can no longer be run"
        process.stderr.close()
        await client.close()

    run(body())


def test_a_client_comes_back_to_life_with_its_engine(address):
    async def body():
        client = ZmqClient(address)
        await client.start()
        for _ in range(2):
            process = spawn(address)
            await until(lambda: client.ready is not None)
            assert client.dead is None
            assert client.ready.engine_pid == process.pid
            tokens, _ = await collect(client, make_request("r", PROMPT, 4))
            assert tokens == solo_tokens(PROMPT, 4)
            process.kill()
            process.wait()
            process.stderr.close()
            await until(lambda: client.dead is not None)
        await client.close()

    run(body())


def test_the_endpoint_tells_slow_clients_from_gone_ones(address):
    endpoint = ZmqEndpoint(address, send_queue=16)
    message = EngineReply(1, info={"text": "x" * 10_000})
    try:
        assert endpoint.send(b"nobody", message) == "gone"
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.ROUTING_ID, b"slow")
            socket.setsockopt(zmq.RCVHWM, 1)
            socket.setsockopt(zmq.RCVBUF, 4096)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(address)
            socket.send(msgspec.msgpack.encode(EngineControl(0, "hello")))
            assert endpoint.drain(5.0) == [(b"slow", EngineControl(0, "hello"))]
            results = [endpoint.send(b"slow", message) for _ in range(2000)]
            assert results[0] == "sent"
            assert results[-1] == "full"
            while socket.poll(200):  # reads again
                socket.recv()
            assert endpoint.send(b"slow", message) == "sent"
        deadline = time.monotonic() + 5
        while endpoint.send(b"slow", message) != "gone":
            endpoint.drain(0.0)  # as the loop does: a lost connection shows when reading
            assert time.monotonic() < deadline
    finally:
        endpoint.close()


def test_a_wake_ends_a_blocked_wait(address):
    endpoint = ZmqEndpoint(address)
    waiter = threading.Thread(target=endpoint.drain, args=(None,))
    waiter.start()
    endpoint.wake()
    waiter.join(10)
    assert not waiter.is_alive()
    endpoint.close()


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_an_idle_engine_uses_no_cpu(address):
    async def body():
        async with process_client(address) as client:
            await collect(client, make_request("r", PROMPT, 4))
            pid = client.ready.engine_pid
            await asyncio.sleep(0.3)
            before = cpu_seconds(pid)
            await asyncio.sleep(2.0)
            assert cpu_seconds(pid) - before < 0.02 + 1e-9

    run(body())


VICTIM = """
import asyncio, sys
sys.path.insert(0, {here!r})
from fakes import make_request
from ortloom.runtime.zmq_client import ZmqClient

async def main():
    client = ZmqClient({address!r})
    await client.start()
    await client.wait_ready()
    async def read(name):
        async for _ in client.generate(make_request(name, list(range(8, 48)), 3000)):
            print(name, flush=True)
    await asyncio.gather(*(read(f"v{{i}}") for i in range(4)))

asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_client_gives_its_blocks_back_and_others_go_on(address, number):
    async def body():
        async with process_client(address, runner=SLOW) as client:
            code = textwrap.dedent(VICTIM).format(here=str(HERE), address=address)
            victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            await until(lambda: client.stats.num_requests_running == 4, 40)
            mine = asyncio.create_task(collect(client, make_request("mine", PROMPT, 150)))
            await until(lambda: client.stats.num_requests_running == 5)
            victim.send_signal(number)
            await until(lambda: client.stats.num_requests_running == 1, 5.0)
            victim.wait()
            victim.stdout.close()
            assert (await mine)[0] == solo_tokens(PROMPT, 150)
            stats = await client.fetch_stats()
            assert (stats.num_requests_running, stats.kv_cache_usage) == (0, 0.0)

    run(body())


def test_a_client_that_never_reads_does_not_hold_others_up(address):
    async def body():
        options = {"step_seconds": 0.0005, "num_blocks": 4000, "max_model_len": 60000}
        async with process_client(address, runner=options) as client:
            code = textwrap.dedent(VICTIM).format(here=str(HERE), address=address)
            victim = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
            await until(lambda: client.stats.num_requests_running == 4)
            victim.send_signal(signal.SIGSTOP)
            try:
                tokens, _ = await collect(client, make_request("mine", PROMPT, 100))
                assert tokens == solo_tokens(PROMPT, 100)
                assert client.dead is None
            finally:
                victim.kill()
                victim.wait()
                victim.stdout.close()
            await until(lambda: client.stats.num_requests_running == 0, 5.0)

    run(body())


def test_messages_that_cannot_be_read_are_dropped(address):
    async def body():
        process = spawn(address)
        client = ZmqClient(address)
        await client.start()
        await client.wait_ready()

        def send_rubbish():
            with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
                socket.connect(address)
                socket.send(b"\xc1 rubbish")
                socket.send_multipart([b"a", b"b", b"c"])
                socket.send(msgspec.msgpack.encode({"type": "request", "request_id": 5}))
                socket.send(msgspec.msgpack.encode(["nothing"]))

        await asyncio.to_thread(send_rubbish)
        tokens, _ = await collect(client, make_request("r", PROMPT, 4))
        assert tokens == solo_tokens(PROMPT, 4)
        await client.close()
        code, text = end(process)
        assert code == 0
        assert text.count("cannot be read") == 4
        assert "Traceback" not in text

    run(body())


def test_an_engine_dies_with_its_parent(address, tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import subprocess, sys, time\n"
        f"command = [sys.executable, {str(HERE / 'fake_engine.py')!r}, {address!r}, '{{}}']\n"
        "p = subprocess.Popen(command)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(60)\n"
    )

    async def body():
        parent = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
        engine = int(parent.stdout.readline())
        client = ZmqClient(address)
        await client.start()
        await client.wait_ready()
        parent.kill()
        parent.wait()
        parent.stdout.close()
        await until(lambda: client.dead is not None, 5.0)
        await until(lambda: not alive(engine), 5.0)
        await client.close()

    run(body())


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
