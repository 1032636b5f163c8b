"""A server inside 1 GiB of memory and one processor, under a load of 32 requests at a time.

In a control group of 1 GiB the engine sees the limit and sizes its cache by it; the kernel ends it
if it takes more. Where no group can be made, the same server gets the cache that such a box would
leave it, and its proportional memory is held to 1 GiB instead.
"""

import json
import os
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = str(Path(__file__).resolve().parent)
if HERE not in sys.path:  # tests are no package
    sys.path.insert(0, HERE)

import edge_box  # noqa: E402
from served import Served  # noqa: E402

pytestmark = pytest.mark.full

LIMIT = 1024 * edge_box.MIB
SHARE = 0.4  # of what is left goes to the KV cache
WITHOUT_GROUP = 256 * edge_box.MIB  # the cache of a box whose limit nothing tells the engine
CLIENTS = 32
NEW_TOKENS = 24
STARTS = (
    "The harbour was empty except for",
    "Two plus two makes four, and four plus four makes",
    "Dear Sir, I am writing to complain about",
    "def fibonacci(n):\n    ",
)


@pytest.fixture(scope="module")
def box(demo_bundle_int4):
    """(server, its control group or None)."""
    group = edge_box.make_group(LIMIT)
    flags = () if group else ("--kv-cache-memory-bytes", str(WITHOUT_GROUP))
    server = Served(demo_bundle_int4, *flags, start_limit=180)
    server.command = edge_box.enter(server.command, group)
    edge_box.drop_pages(demo_bundle_int4)
    try:
        with server:
            yield server, group
    finally:
        if group is not None:
            group.close()


def processes(server):
    return {server.process.pid, *server.children()}


def ask(server, prompt):
    body = {"prompt": prompt, "max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
    reply = server.client.post("/v1/completions", json=body)
    reply.raise_for_status()
    found = reply.json()
    assert found["usage"]["completion_tokens"] == NEW_TOKENS
    return found["choices"][0]["text"]


def prompts():
    """32 prompts of different lengths, no two with a common beginning."""
    return [f"{n}. {STARTS[n % 4]}" + " and so on" * (n * 5) for n in range(CLIENTS)]


def test_the_cache_fits_the_quota_and_all_runs_on_one_processor(box):
    server, group = box
    samples = server.client.get("/metrics").text
    line = next(li for li in samples.splitlines() if li.startswith("vllm:cache_config_info{"))
    labels = dict(
        part.split("=", 1)
        for part in line[line.index("{") + 1 : line.rindex("}")].split(",")
        if "=" in part
    )
    size = int(json.loads(labels["kv_cache_memory_bytes"]))
    if group is None:
        assert size <= WITHOUT_GROUP + 2 * edge_box.MIB
    else:
        assert group.members() >= processes(server)
        assert 16 * edge_box.MIB < size < SHARE * LIMIT
    for pid in processes(server):
        assert len(os.sched_getaffinity(pid)) == 1


def test_32_requests_at_a_time_are_answered_as_each_is_alone(box):
    server, group = box
    peak, done = [0], threading.Event()

    def watch():
        while not done.wait(0.2):
            peak[0] = max(peak[0], edge_box.total_pss(processes(server)))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(CLIENTS) as pool:
            together = list(pool.map(lambda prompt: ask(server, prompt), prompts()))
    finally:
        done.set()
        watcher.join()
    alone = [ask(server, prompt) for prompt in prompts()[::8]]
    assert together[::8] == alone
    assert len(set(together)) > CLIENTS // 2
    assert server.client.get("/health").status_code == 200
    assert 0 < peak[0] < LIMIT
    if group is not None:
        assert group.oom_kills() == 0
        assert group.peak() <= LIMIT
