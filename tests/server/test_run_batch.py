"""`ortloom run-batch`: a file of requests in OpenAI's format, and every way a line can fail."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest
from serving import HERE, free_port

ENV = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parent / 'runtime'}"}
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}


def line(custom_id, body, url="/v1/chat/completions"):
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body})


def command(bundle, *arguments):
    own = [str(bundle), "--served-model-name", "tiny"]
    return [sys.executable, "-m", "batch_in_process", *map(str, arguments), *own]


def run(bundle, *arguments, **env):
    return subprocess.run(
        command(bundle, *arguments),
        capture_output=True,
        text=True,
        env={**ENV, **env},
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def results(bundle, tmp_path_factory):
    """Lines of the output by custom id, in order, and the folder they were made in."""
    folder = tmp_path_factory.mktemp("batch")
    (folder / "scratch").mkdir()
    asked = [
        line("good", CHAT),
        "",
        line("text", {"model": "tiny", "prompt": "ab", "max_tokens": 40}, "/v1/completions"),
        line("range", {**CHAT, "temperature": -1}),
        line("model", {**CHAT, "model": "other"}),
        line("stream", {**CHAT, "stream": True}),
        line("embed", {"model": "tiny", "input": "ab"}, "/v1/embeddings"),
        line("score", {"model": "tiny"}, "/v1/score"),
        line("nowhere", {}, "/v1/responses"),
        line("last", {**CHAT, "n": 2}),
    ]
    (folder / "in.jsonl").write_text("\n".join(asked) + "\n")
    done = run(
        bundle,
        *("-i", folder / "in.jsonl", "-o", folder / "out.jsonl"),
        *("--output-tmp-dir", folder / "scratch"),
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return [json.loads(text) for text in (folder / "out.jsonl").read_text().splitlines()], folder


def test_results_are_in_the_order_of_the_input(results):
    lines, folder = results
    assert [item["custom_id"] for item in lines] == (
        ["good", "text", "range", "model", "stream", "embed", "score", "nowhere", "last"]
    )
    assert not list((folder / "scratch").iterdir())
    assert len({item["id"] for item in lines}) == len(lines)
    for item in lines:
        assert item["id"].startswith("vllm-")
        assert item["response"]["request_id"].startswith("vllm-batch-")


def test_answers_are_those_of_the_server(results):
    lines = {item["custom_id"]: item for item in results[0]}
    for name in ("good", "text", "last"):
        assert lines[name]["error"] is None
        assert lines[name]["response"]["status_code"] == 200
    good = lines["good"]["response"]["body"]
    assert good["object"] == "chat.completion"
    assert good["usage"]["completion_tokens"] == 3
    assert len(lines["text"]["response"]["body"]["choices"][0]["text"]) == 40
    assert len(lines["last"]["response"]["body"]["choices"]) == 2


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("range", 400, "temperature"),
        ("model", 404, "other"),
        ("stream", 400, "stream mode"),
        ("embed", 400, "it generates text"),
        ("score", 400, "it generates text"),
        ("nowhere", 400, "/v1/responses is not supported; supported are: /v1/chat/completions"),
    ],
)
def test_a_failure_has_its_reason(results, name, status, words):
    (item,) = [item for item in results[0] if item["custom_id"] == name]
    assert item["response"]["status_code"] == status
    assert item["response"]["body"] is None
    assert words in json.dumps(item["error"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (line("a", {}) + "\n{", "line 2 of the input"),
        (json.dumps({"custom_id": "a", "method": "POST", "url": "/x"}), "line 1 .* `body`"),
        (json.dumps({"custom_id": "a", "method": "GET", "url": "/x", "body": {}}), "line 1 .*GET"),
    ],
)
def test_a_bad_line_ends_it_before_any_work(bundle, tmp_path, text, words):
    (tmp_path / "in").write_text(text)
    done = run(bundle, "-i", tmp_path / "in", "-o", tmp_path / "out", FAKE_FAIL="1")
    assert done.returncode == 1
    assert re.search(words, done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


def test_flags_and_places_are_checked_first(bundle, tmp_path):
    (tmp_path / "in").write_text(line("a", CHAT))
    for arguments, code, words in (
        (["-o", "x"], 2, "required: --input-file"),
        (["-i", tmp_path / "in"], 2, "required: --output-file"),
        (["-i", tmp_path / "no", "-o", "x"], 1, "cannot read"),
        (["-i", tmp_path / "in", "-o", tmp_path], 1, "it is a folder"),
        (["-i", tmp_path / "in", "-o", "/no/such/x"], 1, "'/no/such'"),
        (["-i", tmp_path / "in", "-o", "x", "--no-such"], 2, "unrecognized"),
    ):
        done = run(bundle, *arguments, FAKE_FAIL="1")
        assert done.returncode == code, done.stderr
        assert words in done.stderr
    done = run(bundle, "-i", tmp_path / "in", "-o", tmp_path / "out", FAKE_FAIL="1")
    assert done.returncode == 1
    assert "the fake bundle was changed" in done.stderr
    assert "Traceback" not in done.stderr


class _Store(BaseHTTPRequestHandler):
    """Gives the input, keeps what is put."""

    kept = b""

    def do_GET(self):
        data = (line("one", {**CHAT, "max_tokens": 400}) + "\n" + line("two", CHAT)).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_PUT(self):
        type(self).kept = self.rfile.read(int(self.headers["content-length"]))
        self.send_response(403 if self.path == "/locked" else 200)
        self.end_headers()

    def log_message(self, *_):
        pass


def test_urls_and_metrics(bundle):
    with HTTPServer(("127.0.0.1", 0), _Store) as store:
        threading.Thread(target=store.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{store.server_address[1]}"
        port = free_port()
        metrics = ("--enable-metrics", "--host", "127.0.0.1", "--port", port)
        with subprocess.Popen(
            command(bundle, "-i", f"{base}/in", "-o", f"{base}/out", *metrics),
            env={**ENV, "FAKE_STEP": "0.01"},
            stderr=subprocess.DEVNULL,
        ) as process:
            seen, address = "", f"http://127.0.0.1:{port}"
            while process.poll() is None and "vllm:num_requests_running" not in seen:
                try:
                    seen = httpx.get(f"{address}/metrics?x=1", timeout=5).text
                    assert httpx.get(f"{address}/v1/models", timeout=5).status_code == 404
                except httpx.TransportError:
                    time.sleep(0.02)
            assert process.wait(60) == 0
        assert "vllm:num_requests_running" in seen
        kept = [json.loads(text) for text in _Store.kept.splitlines()]
        assert [item["custom_id"] for item in kept] == ["one", "two"]
        done = run(bundle, "-i", f"{base}/in", "-o", f"{base}/locked")
        assert done.returncode == 1
        assert "HTTP 403; the results are in" in done.stderr
        rest = Path(done.stderr.rsplit("'", 2)[1])
        assert len(rest.read_text().splitlines()) == 2
        rest.unlink()
        store.shutdown()
