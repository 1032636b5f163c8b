"""Bad input and broken processes: each gives its clear error, and the others are served on."""

import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

served = sys.modules["ortloom_test_served"]


def until(condition, limit=30.0):
    """Wait for a condition; returns its value."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("the condition did not come true in time")


def fails(*arguments, code, words, env=None):
    """The command ends with a code and says the words, without a traceback."""
    result = served.run_cli(*arguments, env=env, limit=60)
    said = result.stdout + result.stderr
    assert result.returncode == code, said
    assert "Traceback" not in said
    for word in words:
        assert word in said, said
    return said


@pytest.fixture(scope="module")
def server(demo_bundle):
    flags = ["--max-model-len", "512", "--num-gpu-blocks-override", "128"]
    with served.Served(demo_bundle, *flags) as running:
        yield running


@pytest.fixture
def copy(demo_bundle, tmp_path):
    """A bundle whose files can be changed without touching the original's."""
    out = tmp_path / "bundle"
    shutil.copytree(demo_bundle, out, copy_function=os.link)

    def own(path: Path) -> Path:
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)
        return path

    return out, own


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())


class TestStart:
    def test_wrong_path(self, tmp_path):
        fails("serve", str(tmp_path / "nowhere"), code=1, words=["nowhere"])

    def test_a_folder_that_is_no_bundle(self, tmp_path):
        fails("serve", str(tmp_path), code=1, words=[str(tmp_path)])

    def test_other_schema_version(self, copy):
        folder, own = copy
        path = own(folder / "manifest.json")
        path.write_text(path.read_text().replace('"schema_version": 1', '"schema_version": 999'))
        fails("serve", str(folder), code=1, words=["schema version", "999", "export"])

    def test_manifest_cut_short(self, copy):
        folder, own = copy
        path = own(folder / "manifest.json")
        path.write_bytes(path.read_bytes()[:1000])
        fails("serve", str(folder), code=1, words=["manifest.json"])

    @pytest.mark.parametrize("what", ["graph", "tokenizer"])
    def test_changed_small_file(self, copy, what):
        folder, own = copy
        manifest = manifest_of(folder)
        entry = manifest["graphs"][0]["file"] if what == "graph" else manifest["tokenizer"][what]
        path = own(folder / entry["path"])
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        fails("serve", str(folder), code=1, words=[entry["path"], "changed"])

    def test_weight_file_cut_short(self, copy):
        folder, own = copy
        entry = manifest_of(folder)["weights"][0]["file"]
        path = own(folder / entry["path"])
        with path.open("r+b") as file:
            file.truncate(entry["size"] - 4096)
        fails("serve", str(folder), code=1, words=[entry["path"]])

    def test_weight_contents_are_checked_on_request(self, copy):
        folder, own = copy
        entry = manifest_of(folder)["weights"][0]["file"]
        path = own(folder / entry["path"])
        with path.open("r+b") as file:
            file.seek(entry["size"] // 2)
            byte = file.read(1)
            file.seek(entry["size"] // 2)
            file.write(bytes([byte[0] ^ 1]))
        fails("serve", str(folder), "--verify", code=1, words=[entry["path"], "changed"])

    def test_port_in_use(self, demo_bundle):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            arguments = ["serve", str(demo_bundle), "--host", "127.0.0.1", "--port", port]
            fails(*arguments, code=1, words=[port, "in use"])

    @pytest.mark.parametrize(
        "flags",
        [
            ["--kv-cache-memory-bytes", "1000"],
            ["--num-gpu-blocks-override", "4", "--max-model-len", "2048"],
        ],
    )
    def test_kv_budget_too_small(self, demo_bundle, flags):
        port = str(served.free_port())
        arguments = ["serve", str(demo_bundle), "--host", "127.0.0.1", "--port", port, *flags]
        fails(*arguments, code=2, words=["KV", "--"])

    def test_forced_tier_that_does_not_exist(self, demo_bundle):
        port = str(served.free_port())
        arguments = ["serve", str(demo_bundle), "--host", "127.0.0.1", "--port", port]
        fails(*arguments, code=2, words=["avx1024"], env={"ORTLOOM_CPU_ISA": "avx1024"})

    @pytest.mark.parametrize("provider", ["tensorrt", "cuda"])
    def test_provider_that_cannot_be_had(self, demo_bundle, provider):
        port = str(served.free_port())
        arguments = ["serve", str(demo_bundle), "--host", "127.0.0.1", "--port", port]
        fails(*arguments, "--provider", provider, code=1, words=[provider])

    def test_unknown_flag(self):
        fails("serve", "x", "--max-model-length", "5", code=2, words=["--max-model-len"])


BAD_BODIES = [
    ({"prompt": []}, 400),
    ({"prompt": [[]]}, 400),
    ({"prompt": ""}, 400),
    ({"prompt": None}, 400),
    ({"prompt": list(range(600))}, 400),
    ({"prompt": list(range(512))}, 400),
    ({"prompt": "x " * 2000}, 400),
    ({"prompt": [49152]}, 400),
    ({"prompt": [-1]}, 400),
    ({"prompt": [1.5]}, 400),
    ({"prompt": "a", "max_tokens": "many"}, 400),
    ({"prompt": "a", "max_tokens": 513}, 400),
    ({"prompt": "a", "temperature": "hot"}, 400),
    ({"prompt": "a", "temperature": 3}, 400),
    ({"prompt": "a", "stop": 5}, 400),
    ({"prompt": "a", "stop": ["a", "b", "c", "d", "e"]}, 400),
    ({"prompt": "a", "logit_bias": {"x": 1}}, 400),
    ({"prompt": "a", "stream": "yes"}, 400),
    ({"prompt": "a", "n": 0}, 400),
    ({"prompt": {"a": 1}}, 400),
    ({"prompt": "a", "model": "nobody"}, 404),
    ({"prompt": "a", "model": 5}, 400),
]


@pytest.mark.parametrize(("body", "status"), BAD_BODIES, ids=[str(b)[:40] for b, _ in BAD_BODIES])
def test_bad_completion_bodies(server, body, status):
    reply = server.client.post("/v1/completions", json={"max_tokens": 2, **body})
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert error["code"] == status
    assert error["message"]
    good = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
    assert good.status_code == 200


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b"\xff\xfe", b'{"prompt": "a"} x'])
def test_malformed_json(server, raw):
    headers = {"content-type": "application/json"}
    for route in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        reply = server.client.post(route, content=raw, headers=headers)
        assert reply.status_code == 400
        assert reply.json()["error"]["message"]


def blocks_free(server):
    metrics = server.metrics()
    return (
        metrics["vllm:kv_cache_usage_perc"] == 0
        and metrics["vllm:num_requests_running"] == 0
        and metrics["vllm:num_requests_waiting"] == 0
    )


def test_a_client_that_vanishes_gives_its_blocks_back(server):
    body = {"prompt": "Once", "max_tokens": 500, "ignore_eos": True, "stream": True}
    before = server.metrics()["vllm:generation_tokens_total"]
    with server.client.stream("POST", "/v1/completions", json=body) as reply:
        next(reply.iter_lines())
    until(lambda: blocks_free(server))
    assert server.metrics()["vllm:generation_tokens_total"] - before < 400


def test_a_client_that_never_reads_gives_its_blocks_back(demo_bundle_int4):
    """Its stream fills every buffer; the send limit ends it and the others are served."""
    flags = ["--max-model-len", "8192", "--num-gpu-blocks-override", "520"]
    with served.Served(demo_bundle_int4, *flags) as server:
        body = {
            "prompt": "Once",
            "max_tokens": 8000,
            "ignore_eos": True,
            "stream": True,
            "logprobs": 20,
            "return_token_ids": True,
        }
        data = json.dumps(body).encode()
        with socket.socket() as silent:
            silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            silent.connect(("127.0.0.1", server.port))
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
            silent.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + data)
            until(lambda: server.metrics()["vllm:num_requests_running"] == 1)
            good = server.client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
            assert good.status_code == 200
            until(lambda: blocks_free(server), limit=120)
            assert server.metrics()["vllm:generation_tokens_total"] < 8000


def stream_events(server, events, started):
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    try:
        with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=60) as reply:
            for line in reply.iter_lines():
                events.append(line)
                started.set()
    except httpx.TransportError as error:
        events.append(repr(error))


def test_engine_killed(demo_bundle):
    """Streams get an error event, /health turns 503, the supervisor exits non-zero."""
    with served.Served(demo_bundle, "--max-model-len", "512") as server:
        events, started = [], threading.Event()
        reader = threading.Thread(target=stream_events, args=(server, events, started))
        reader.start()
        assert started.wait(30)
        os.kill(server.pid_of("ortloom.runtime.engine_process"), signal.SIGKILL)
        reader.join(30)
        told = [line for line in events if '"error"' in line]
        assert told, events[-3:]
        assert events[-1] == "data: [DONE]" or "[DONE]" in "".join(events[-2:])
        assert server.process.wait(30) != 0
        assert "Traceback" not in server.text()


def test_health_is_503_while_a_dead_engine_drains(demo_bundle):
    with served.Served(demo_bundle, "--max-model-len", "512") as server:
        statuses = []
        os.kill(server.pid_of("ortloom.runtime.engine_process"), signal.SIGKILL)
        while server.process.poll() is None:
            try:
                statuses.append(httpx.get(server.url + "/health", timeout=2).status_code)
            except httpx.TransportError:
                time.sleep(0.01)
        assert 503 in statuses
        assert server.process.returncode != 0


def test_front_killed(demo_bundle):
    """A killed front comes back; the other front and the engine never stop."""
    flags = ["--api-server-count", "2", "--max-model-len", "512"]
    with served.Served(demo_bundle, *flags) as server:
        fronts = [
            pid
            for pid in server.children()
            if b"ortloom.server.front" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(fronts) == 2
        engine = server.pid_of("ortloom.runtime.engine_process")
        os.kill(fronts[0], signal.SIGKILL)
        answers = 0
        while answers < 5:
            try:
                body = {"prompt": "a", "max_tokens": 2}
                reply = httpx.post(server.url + "/v1/completions", json=body, timeout=30)
                assert reply.status_code == 200
                answers += 1
            except httpx.TransportError:
                continue  # a connection that the dead front had accepted

        def fresh():
            now = [
                pid
                for pid in server.children()
                if b"ortloom.server.front" in Path(f"/proc/{pid}/cmdline").read_bytes()
            ]
            return len(now) == 2 and fronts[0] not in now and fronts[1] in now

        until(fresh)
        assert server.pid_of("ortloom.runtime.engine_process") == engine
        until(lambda: blocks_free(server))


def test_terminate_drains(demo_bundle_int4):
    """SIGTERM lets a running stream finish within the shutdown timeout and exits 0."""
    flags = ["--max-model-len", "512", "--shutdown-timeout", "60"]
    with served.Served(demo_bundle_int4, *flags) as server:
        events, started = [], threading.Event()
        reader = threading.Thread(target=stream_events, args=(server, events, started))
        reader.start()
        assert started.wait(30)
        assert server.stop(limit=90) == 0
        reader.join(10)
        assert "data: [DONE]" in events
        assert not [line for line in events if '"error"' in line]
