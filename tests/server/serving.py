"""A server in a subprocess, and raw HTTP over sockets."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from ortloom.config import (
    Config,
    FrontConfig,
    LogConfig,
    MetricsConfig,
    ModelConfig,
    SchedulerConfig,
)

HERE = Path(__file__).resolve().parent
KEY = "sk-test-key-4711"
COMPLETIONS = "/v1/completions"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(what, seconds=10.0, pause=0.02):
    """The first true value of `what()`; an AssertionError after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        value = what()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(pause)


class Server:
    """The supervisor with its children; a context manager that waits for /health."""

    def __init__(
        self,
        bundle,
        *,
        env=None,
        log=None,
        scheduler=None,
        metrics=None,
        traces=None,
        wait=True,
        module="supervise",
        **front,
    ):
        self.folder = Path(tempfile.mkdtemp(prefix="ortloom-test-"))
        self.port = front.pop("port", None) or free_port()
        self.model = "tiny"
        settings = FrontConfig(host="127.0.0.1", port=self.port, **front)
        self.config = Config(
            model=ModelConfig(bundle=str(bundle), served_model_names=("tiny", "alias")),
            front=settings,
            log=log or LogConfig(),
            scheduler=scheduler or SchedulerConfig(),
            metrics=metrics or MetricsConfig(),
            traces=traces,
        )
        path = self.folder / "config.json"
        path.write_bytes(msgspec.json.encode(self.config))
        self.log = self.folder / "log"
        self.env = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent / 'runtime'}", **(env or {})}
        self.command = [sys.executable, "-P", "-m", module, str(path)]
        self.wait = wait
        self.process = None
        headers = {}
        if settings.api_keys:
            headers["authorization"] = f"Bearer {settings.api_keys[0]}"
        self.headers = headers
        self.url = f"http://127.0.0.1:{self.port}"
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def __enter__(self):
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.env, start_new_session=True
            )
        if self.wait:
            self.wait_healthy()
        return self

    def wait_healthy(self):
        def healthy():
            assert self.process.poll() is None, self.text()
            try:
                return self.client.get("/health").status_code == 200
            except httpx.TransportError:
                return False

        try:
            until(healthy, 30)
            until(lambda: "startup complete" in self.text(), 10)
        except AssertionError:
            self.process.kill()
            sys.stderr.write(self.text())
            raise

    def __exit__(self, kind, error, trace):
        self.client.close()
        if self.process.poll() is None:
            self.stop()
        if kind is not None:
            sys.stderr.write(self.text()[-5000:])
        shutil.rmtree(self.folder, ignore_errors=True)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def stop(self, number=signal.SIGTERM, limit=20) -> int:
        self.process.send_signal(number)
        return self.wait_end(limit)

    def wait_end(self, limit=20) -> int:
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise

    def children(self, module) -> list[int]:
        found = []
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():
            for pid in (task / "children").read_text().split():
                try:
                    line = Path(f"/proc/{pid}/cmdline").read_bytes()
                except FileNotFoundError:
                    continue
                if module.encode() in line:
                    found.append(int(pid))
        return found

    @property
    def engine_pid(self) -> int:
        (pid,) = self.children("fake_engine")
        return pid

    @property
    def front_pids(self) -> list[int]:
        return self.children("ortloom.server.front")

    def metrics(self) -> dict[str, float]:
        samples = {}
        for line in self.client.get("/metrics").text.splitlines():
            match = re.fullmatch(r"([a-zA-Z_:][\w:]*(?:\{.*\})?) (\S+)", line)
            if match:
                assert match[1] not in samples, match[1]
                samples[match[1]] = float(match[2])
        return samples

    def metric(self, name, **labels) -> float:
        """Sum of the series of a name that have these labels."""
        return sum(
            value
            for series, value in self.metrics().items()
            if series.partition("{")[0] == name
            and all(f'{k}="{v}"' in series for k, v in labels.items())
        )

    def idle(self, seconds=10):
        until(
            lambda: (
                self.metric("vllm:num_requests_running") == 0
                and self.metric("vllm:num_requests_waiting") == 0
            ),
            seconds,
            0.05,
        )

    def complete(self, **fields):
        return self.client.post(COMPLETIONS, json=body(**fields))

    # raw sockets

    def connect(self, rcvbuf=None):
        sock = socket.socket()
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        sock.settimeout(20)
        try:
            sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        return sock

    def request(self, payload=b"", path=COMPLETIONS, method="POST", headers=(), length=None):
        """The bytes of a request."""
        if isinstance(payload, dict):
            payload = json.dumps(payload).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: test"]
        lines += [f"{k}: {v}" for k, v in self.headers.items()]
        if length is not False:
            size = len(payload) if length is None else length
            lines += ["Content-Type: application/json", f"Content-Length: {size}"]
        lines += list(headers)
        return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + payload

    def raw(self, data, half_close=False) -> bytes:
        """Send bytes, read to the end."""
        with self.connect() as sock:
            out = b""
            try:
                sock.sendall(data)
                if half_close:
                    sock.shutdown(socket.SHUT_WR)
                while part := sock.recv(65536):
                    out += part
            except ConnectionError:
                pass
            return out


def body(**fields):
    return {"model": "tiny", "prompt": "ab", "max_tokens": 4, "temperature": 0, **fields}


def long_body(**fields):
    return body(**{"max_tokens": 4000, "ignore_eos": True, "stream": True, **fields})


def status_of(reply: bytes) -> int | None:
    match = re.match(rb"HTTP/1\.1 (\d{3}) ", reply)
    return int(match[1]) if match else None


def read_until(sock, mark: bytes) -> bytes:
    """Bytes up to and including a mark."""
    out = b""
    while mark not in out:
        part = sock.recv(65536)
        assert part, f"closed before {mark!r}: {out[-200:]!r}"
        out += part
    return out


def events(text: str) -> list[str]:
    """Data of the events of a stream, comments left out."""
    return [
        block.removeprefix("data: ")
        for block in text.split("\n\n")
        if block and not block.startswith(":")
    ]
