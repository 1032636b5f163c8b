"""Engines to talk to: FakeModelRunner in a process behind ZeroMQ, or in a thread."""

import asyncio
import json
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

from fakes import FakeModelRunner, make_config

from ortloom.runtime.engine_core import EngineCore
from ortloom.runtime.in_process_client import InProcessClient
from ortloom.runtime.zmq_client import ZmqClient

HERE = Path(__file__).resolve().parent
SLOW = {"step_seconds": 0.01, "num_blocks": 200}


def spawn(address, **options):
    return subprocess.Popen(
        [sys.executable, str(HERE / "fake_engine.py"), address, json.dumps(options)],
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process):
    process.terminate()
    try:
        return process.wait(20), process.stderr.read()
    finally:
        process.kill()
        process.stderr.close()


@asynccontextmanager
async def process_client(address, **options):
    process = spawn(address, **options)
    client = ZmqClient(address)
    await client.start()
    try:
        async with asyncio.timeout(20):
            await client.wait_ready()
        yield client
    finally:
        await client.close()
        code, text = end(process)
        assert (code, text) == (0, "")


@asynccontextmanager
async def thread_client(address, runner=None, **options):
    made = FakeModelRunner(**(runner or {}))
    client = InProcessClient(lambda: EngineCore(make_config(**options), made))
    await client.start()
    try:
        async with asyncio.timeout(20):
            await client.wait_ready()
        yield client
    finally:
        await client.close()


async def collect(client, request):
    outputs = [output async for output in client.generate(request)]
    return [t for o in outputs for t in o.new_token_ids], outputs[-1]


async def until(condition, seconds=15.0):
    async with asyncio.timeout(seconds):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return
            await asyncio.sleep(0.02)


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))
