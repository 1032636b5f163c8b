"""Processes: start, failure, replacement, signals."""

import os
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import httpx
import msgspec
import pytest
from serving import COMPLETIONS, Server, body, long_body, read_until, status_of, until


def gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_start_up_lines(server):
    text = server.text()
    for line in (
        "sampling defaults: temperature=0.5",
        "KV cache size: 8,192 tokens",
        "Maximum concurrency for 4,096 tokens per request: 2.00x",
        "Provider: fake, graph fake (counts)",
        "Provider cuda not used: no device",
        "Route: /health, Methods: GET, HEAD",
        "Route: /v1/completions, Methods: POST",
        "this model only counts",
        "Application startup complete.",
    ):
        assert text.count(line) == 1, line


def test_the_curl_line_works(server):
    (line,) = [x for x in server.text().splitlines() if x.startswith("curl ")]
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=20)
    assert '"text_completion"' in done.stdout


def test_health_is_503_until_the_engine_has_run_a_step(bundle, tmp_path):
    gate = tmp_path / "gate"
    with Server(bundle, wait=False, env={"FAKE_GATE": str(gate)}) as server:

        def status(path="/health"):
            try:
                return server.client.get(path).status_code
            except httpx.TransportError:
                return None

        assert until(status, 20) == 503
        for path in ("/version", "/metrics", "/v1/models", "/server_info"):
            assert status(path) == 200
        early = server.complete()
        assert early.status_code == 503
        assert early.headers["retry-after"]
        gate.touch()
        until(lambda: status() == 200)
        assert server.complete().status_code == 200


def test_connections_are_taken_before_anything_is_loaded(bundle):
    """The socket is bound first: a request sent at once waits, it is not refused."""
    with Server(bundle, wait=False) as server:
        sock = until(lambda: _try_connect(server), 5, 0.001)
        with sock:
            sock.sendall(server.request(method="GET", path="/version", length=False))
            assert status_of(read_until(sock, b"\r\n\r\n")) == 200


def _try_connect(server):
    try:
        return server.connect()
    except OSError:
        return None


def test_a_port_in_use_is_one_clear_line_and_exit_1(bundle, server):
    with Server(bundle, port=server.port, wait=False) as second:
        assert second.wait_end() == 1
        (line,) = second.text().splitlines()
        assert line == (
            f"ortloom: error: cannot listen on 127.0.0.1:{server.port}: the address is in use by "
            "another process"
        )
    assert server.complete().status_code == 200


def test_an_engine_that_cannot_start_passes_its_message_and_code_on(bundle):
    with Server(bundle, wait=False, env={"FAKE_FAIL": "1"}) as server:
        assert server.wait_end() == 1
        assert server.text().count("the fake bundle was changed") == 1
        assert "Traceback" not in server.text()


def test_a_front_that_cannot_start_says_why_once(bundle, tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for file in bundle.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    (broken / "tokenizer.json").write_text("{}")
    with Server(broken, wait=False, num_fronts=2) as server:
        assert server.wait_end() == 1
        text = server.text()
        assert text.count("tokenizer.json") == 1
        assert "Traceback" not in text


def test_kill_9_of_a_front_disturbs_no_other(bundle):
    with Server(bundle, num_fronts=2, env={"FAKE_STEP": "0.01"}) as server:
        old = server.front_pids
        sock = server.connect()
        with sock:
            sock.sendall(server.request({**long_body(), "max_tokens": 200}))
            first = read_until(sock, b"data: {")
            owner = _owner_of(sock, old)
            (victim,) = set(old) - {owner}
            os.kill(victim, signal.SIGKILL)
            until(lambda: len(set(server.front_pids) - set(old)) == 1, 10)
            tail = first + read_until(sock, b"data: [DONE]\n\n")
            assert b'"error"' not in tail
            assert b'"finish_reason":"length"' in tail
        until(lambda: _answers(server), 5)
        assert "front" in server.text()
        assert server.stop() == 0


def _owner_of(sock, pids):
    """The process that holds the other end of a loopback connection."""
    port = sock.getsockname()[1]
    inode = None
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if int(fields[2].partition(":")[2], 16) == port and fields[3] == "01":
            inode = fields[9]
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(fd) == f"socket:[{inode}]":
                return pid
    raise LookupError(port)


def _answers(server):
    try:
        return httpx.post(server.url + COMPLETIONS, json=body()).status_code == 200
    except httpx.TransportError:
        return False


def test_the_requests_of_a_killed_front_give_their_blocks_back(bundle):
    with Server(bundle, env={"FAKE_STEP": "0.01"}) as server:
        (old,) = server.front_pids
        with server.connect() as sock:
            sock.sendall(server.request(long_body()))
            read_until(sock, b"data: {")
            os.kill(old, signal.SIGKILL)
            until(lambda: server.front_pids not in ([], [old]), 10)
        server.client.close()
        server.client = httpx.Client(base_url=server.url, timeout=20)
        until(lambda: _answers(server), 10)
        server.idle(10)
        assert server.metric("vllm:kv_cache_usage_perc") == 0


def test_fronts_that_keep_dying_end_the_server(bundle):
    with Server(bundle) as server:
        seen = set()
        for _ in range(4):
            pid = until(lambda: [p for p in server.front_pids if p not in seen], 10)[0]
            seen.add(pid)
            os.kill(pid, signal.SIGKILL)
        assert server.wait_end() == 1
        assert "giving up" in server.text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_it_with_0_and_leave_nothing(bundle, number):
    with Server(bundle, num_fronts=2) as server:
        pids = [server.engine_pid, *server.front_pids]
        start = time.monotonic()
        assert server.stop(number) == 0
        assert time.monotonic() - start < 5
        assert all(gone(pid) for pid in pids)
        assert "Traceback" not in server.text()


def test_a_second_signal_ends_it_at_once(bundle):
    running = Server(bundle, shutdown_timeout=60, env={"FAKE_STEP": "0.01"})
    with running as server, server.connect() as sock:
        sock.sendall(server.request(long_body()))
        read_until(sock, b"data: {")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: "waiting up to 60 s" in server.text())
        assert server.process.poll() is None
        start = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        server.wait_end()
        assert time.monotonic() - start < 5


def test_children_die_with_the_supervisor(bundle):
    with Server(bundle) as server:
        pids = [server.engine_pid, *server.front_pids]
        server.process.kill()
        server.process.wait()
        until(lambda: all(gone(pid) for pid in pids), 5)


def test_a_unix_socket(bundle, tmp_path):
    path = tmp_path / "sock"
    with Server(bundle, uds=str(path), wait=False) as server:
        server.client.close()
        transport = httpx.HTTPTransport(uds=str(path))
        server.client = httpx.Client(base_url="http://x", transport=transport, timeout=20)
        until(path.exists)
        until(lambda: _accepts(path))
        server.wait_healthy()
        assert server.complete().status_code == 200
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert f"--unix-socket '{path}'" in server.text()
        assert server.stop() == 0
    assert not path.exists()


def _accepts(path):
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def test_a_stale_unix_socket_is_replaced_and_a_file_is_not(bundle, tmp_path):
    from ortloom.config import FrontConfig
    from ortloom.server.listening import CannotListen, bind

    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    with bind(FrontConfig(uds=str(path))), pytest.raises(CannotListen, match="in use"):
        bind(FrontConfig(uds=str(path)))
    file = tmp_path / "file"
    file.write_text("keep me")
    with pytest.raises(CannotListen, match="no socket"):
        bind(FrontConfig(uds=str(file)))
    assert file.read_text() == "keep me"


def test_an_address_that_is_not_ours():
    from ortloom.config import FrontConfig
    from ortloom.server.listening import CannotListen, bind

    with pytest.raises(CannotListen, match=r"192\.0\.2\.1:8000"):
        bind(FrontConfig(host="192.0.2.1"))
    with pytest.raises(CannotListen, match="nowhere"):
        bind(FrontConfig(host="nowhere.invalid"))


def test_the_supervisor_is_light():
    """It must start in tens of milliseconds: no event loop, no server, no arrays."""
    code = (
        "import sys, ortloom.server.supervisor; "
        "print([m for m in ('asyncio','sanic','numpy','zmq','prometheus_client','onnxruntime') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_front_imports_neither_numpy_nor_onnxruntime_nor_torch():
    code = (
        "import sys, ortloom.server.front; "
        "print([m for m in ('numpy','onnxruntime','torch','transformers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_logs_are_in_utc():
    code = "from ortloom import logs; logs.set_up('INFO', 'x'); import logging; logging.info('hi')"
    env = {**os.environ, "TZ": "Asia/Tokyo"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    stamp, rest = done.stderr.split(" ", 1)
    assert rest.strip() == "INFO x root: hi"
    told = time.strptime(stamp.partition(".")[0], "%Y-%m-%dT%H:%M:%S")
    assert abs(time.mktime(told) - time.mktime(time.gmtime())) < 60


def test_hosts_and_paths_that_are_none():
    from ortloom.config import FrontConfig
    from ortloom.server.listening import CannotListen, bind

    for host in ("a" * 70, "\u00e9" * 70, ".."):
        with pytest.raises(CannotListen, match="no host name"):
            bind(FrontConfig(host=host))
    with pytest.raises(CannotListen, match="path"):
        bind(FrontConfig(uds=""))


@pytest.mark.parametrize("kind", ["full disk", "reader gone"])
def test_it_serves_on_when_nobody_takes_its_words(bundle, kind):
    with Server(bundle, wait=False) as first:  # for its folder, port and configuration
        first.stop()
        if kind == "full disk":
            target = os.open("/dev/full", os.O_WRONLY)
        else:
            reader, target = os.pipe()
            os.close(reader)
        try:
            first.process = subprocess.Popen(
                first.command, stdout=target, stderr=target, env=first.env, start_new_session=True
            )
        finally:
            os.close(target)

        def healthy():
            assert first.process.poll() is None
            try:
                return first.client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        until(healthy, 30)
        assert first.complete().status_code == 200
        assert first.stop() == 0


def test_without_a_folder_for_temporary_files_it_says_so(bundle, monkeypatch, capsys):
    from ortloom.config import Config, FrontConfig, ModelConfig
    from ortloom.server import spawn, supervisor

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(spawn.tempfile, "mkdtemp", full)
    front = FrontConfig(host="127.0.0.1", port=0)
    assert supervisor.run(Config(model=ModelConfig(bundle=str(bundle)), front=front)) == 1
    assert "temporary files: No space left" in capsys.readouterr().err


def test_a_front_that_cannot_start_gives_one_line(bundle, tmp_path):
    """Whatever it stumbles over, here a tokenizer path that is a link to itself."""
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with Server(bundle, wait=False) as server:
        server.stop()
        path = Path(server.command[-1])
        model = msgspec.structs.replace(server.config.model, tokenizer=str(loop / "x"))
        path.write_bytes(msgspec.json.encode(msgspec.structs.replace(server.config, model=model)))
        done = subprocess.run(
            server.command, capture_output=True, text=True, env=server.env, timeout=30
        )
    assert done.returncode == 1
    assert done.stderr.count("ortloom: error:") == 1
    assert "Traceback" not in done.stderr
