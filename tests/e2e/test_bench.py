"""`ortloom bench` against a real server and a real engine, with small counts."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

served = sys.modules["ortloom_test_served"]

SMALL = [
    *("--random-input-len", "24", "--random-output-len", "6", "--ignore-eos"),
    *("--temperature", "0", "--disable-tqdm"),
]
ENGINE = ["--max-model-len", "256", "--num-gpu-blocks-override", "64"]


def bench(*arguments, code=0, env=None):
    done = served.run_cli("bench", *map(str, arguments), env=env, limit=120)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def rows(text):
    """The rows of the result table."""
    found = {}
    for line in text.splitlines():
        match = re.fullmatch(r"(.{40}) (\S+)\s*", line)
        if match:
            found[match[1].strip().rstrip(":")] = float(match[2])
    return found


@pytest.fixture(scope="module")
def server(demo_bundle):
    with served.Served(demo_bundle, *ENGINE) as running:
        yield running


def requests_of(server):
    metrics = server.metrics()
    return {
        "requests": metrics["vllm:request_success_total"],
        "prompt": metrics["vllm:prompt_tokens_total"],
        "output": metrics["vllm:generation_tokens_total"],
    }


def test_serve_counts_what_the_server_counts(server, tmp_path):
    """No model, no tokenizer named: both come from the server."""
    before = requests_of(server)
    done = bench(
        *("serve", "--base-url", server.url, *SMALL, "--num-prompts", 8, "--num-warmups", 2),
        *("--max-concurrency", 4, "--percentile-metrics", "ttft,tpot,itl,e2el"),
        *("--metric-percentiles", "50,99", "--goodput", "e2el:60000", "--metadata", "run=one"),
        *("--save-result", "--save-detailed", "--result-dir", tmp_path / "new"),
    )
    shown = rows(done.stdout)
    (path,) = (tmp_path / "new").iterdir()
    tree = json.loads(path.read_text())
    assert re.fullmatch(r"openai-infqps-concurrency4-.*-\d{8}-\d{6}\.json", path.name)
    assert (tree["completed"], tree["failed"], tree["run"]) == (8, 0, "one")
    assert (tree["total_input_tokens"], tree["total_output_tokens"]) == (8 * 24, 8 * 6)
    assert tree["input_lens"] == [24] * 8
    assert tree["output_lens"] == [6] * 8
    assert tree["errors"] == [""] * 8
    assert all(tree["generated_texts"])
    assert 1 <= tree["max_concurrent_requests"] <= 4
    added = {name: value - before[name] for name, value in requests_of(server).items()}
    assert added == {"requests": 11, "prompt": 11 * 24, "output": 11 * 6}  # test and warm-ups too

    assert shown["Successful requests"] == 8
    assert shown["Maximum request concurrency"] == 4
    assert shown["Total input tokens"] == 8 * 24
    assert shown["Total generated tokens"] == 8 * 6
    assert shown["Request goodput (req/s)"] == shown["Request throughput (req/s)"] > 0
    # the parts of a request make up the whole
    for i in range(8):
        assert tree["ttfts"][i] > 0
        assert len(tree["itls"][i]) <= 5
    total = tree["mean_ttft_ms"] + 5 * tree["mean_tpot_ms"]
    assert total == pytest.approx(tree["mean_e2el_ms"], rel=1e-6)
    assert shown["Mean E2EL (ms)"] == pytest.approx(tree["mean_e2el_ms"], abs=0.01)
    assert tree["duration"] * 1000 >= tree["p99_e2el_ms"] * 0.99


def test_serve_chat_at_a_rate(server, tmp_path):
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps({"prompt": f"Count to {i}."}) + "\n" for i in range(3)))
    begin = time.monotonic()
    done = bench(
        *("serve", "--base-url", server.url, "--backend", "openai-chat", "--temperature", 0),
        *("--dataset-name", "custom", "--dataset-path", data, "--custom-output-len", 4),
        *("--num-prompts", 6, "--request-rate", 20, "--burstiness", 1000, "--ignore-eos"),
        *("--append-result", "--result-filename", tmp_path / "all.jsonl", "--label", "talk"),
    )
    assert time.monotonic() - begin > 5 / 20
    shown = rows(done.stdout)
    assert shown["Request rate configured (RPS)"] == 20
    assert shown["Total generated tokens"] == 24
    assert shown["Benchmark duration (s)"] >= 0.24
    tree = json.loads((tmp_path / "all.jsonl").read_text())
    assert (tree["request_rate"], tree["label"], tree["completed"]) == (20.0, "talk", 6)
    assert "itls" not in tree


def test_serve_reports_failures(server, tmp_path):
    """The test request is refused: nothing is measured. Later ones: they are counted and shown."""
    refused = bench(
        "serve", "--base-url", server.url, "--input-len", 400, "--num-prompts", 2, *SMALL, code=1
    )
    assert "the test request failed, nothing was measured: HTTP 400: " in refused.stderr
    assert refused.stdout == ""
    data = tmp_path / "prompts.jsonl"
    texts = ["short", "word " * 400, "short too"]
    data.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))
    done = bench(
        *("serve", "--base-url", server.url, "--dataset-name", "custom", "--dataset-path", data),
        *("--custom-output-len", 2, "--num-prompts", 3, "--disable-shuffle", "--temperature", 0),
    )
    shown = rows(done.stdout)
    assert (shown["Successful requests"], shown["Failed requests"]) == (2, 1)
    assert "1 of 3 requests failed:" in done.stderr
    assert "1 x HTTP 400: " in done.stderr
    unknown = bench("serve", "--base-url", server.url, "--model", "other", *SMALL, code=1)
    assert "--tokenizer" in unknown.stderr


def test_serve_ends_on_interrupt(server):
    command = [sys.executable, "-m", "ortloom", "bench", "serve", "--base-url", server.url]
    command += ["--num-prompts", "4", "--input-len", "8", "--random-output-len", "8"]
    command += ["--ignore-eos", "--request-rate", "0.5"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        for line in run.stderr:
            if line.startswith("sending 4 requests"):
                break
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=20)
    assert run.returncode == 130, err
    assert out == ""
    assert err.splitlines() == ["ortloom: interrupted"]
    end = time.monotonic() + 20
    while server.metrics()["vllm:num_requests_running"]:
        assert time.monotonic() < end
        time.sleep(0.02)


def test_latency(demo_bundle, tmp_path):
    done = bench(
        *("latency", demo_bundle, *ENGINE, "--input-len", 16, "--output-len", 3),
        *("--batch-size", 2, "--num-iters-warmup", 0, "--num-iters", 3, "--n", 2),
        *("--output-json", tmp_path / "out.json"),
    )
    tree = json.loads((tmp_path / "out.json").read_text())
    assert len(tree["latencies"]) == 3
    assert tree["avg_latency"] == pytest.approx(sum(tree["latencies"]) / 3)
    assert tree["percentiles"]["50"] == sorted(tree["latencies"])[1]
    lines = done.stdout.splitlines()
    assert lines[0] == f"Avg latency: {tree['avg_latency']} seconds"
    shares = [re.fullmatch(r"(\d+)% percentile latency: \S+ seconds", line) for line in lines[1:]]
    assert [share[1] for share in shares] == ["10", "25", "50", "75", "90", "99"]
    long = bench("latency", demo_bundle, *ENGINE, "--input-len", 200, "--output-len", 57, code=2)
    assert "does not fit the context of 256 tokens" in long.stderr


def test_throughput(demo_bundle, tmp_path):
    done = bench(
        *("throughput", demo_bundle, *ENGINE, "--num-prompts", 5, "--input-len", 20),
        *("--output-len", 3, "--n", 2, "--output-json", tmp_path / "out.json"),
    )
    tree = json.loads((tmp_path / "out.json").read_text())
    assert (tree["num_requests"], tree["total_num_tokens"]) == (5, 5 * (20 + 2 * 3))
    assert tree["requests_per_second"] == pytest.approx(5 / tree["elapsed_time"])
    first, prompt, output = done.stdout.splitlines()
    rates = re.fullmatch(
        r"Throughput: (\S+) requests/s, (\S+) total tokens/s, (\S+) output tokens/s", first
    )
    assert float(rates[3]) == pytest.approx(30 / tree["elapsed_time"], abs=0.01)
    assert (prompt, output) == ("Total num prompt tokens:  100", "Total num output tokens:  30")
    long = bench("throughput", demo_bundle, *ENGINE, "--input-len", 99999999, code=2)
    assert "does not fit the context of 256 tokens" in long.stderr


def processes_of(bundle):
    """Pids of servers of a bundle."""
    found = []
    for path in Path("/proc").iterdir():
        try:
            command = (path / "cmdline").read_bytes() if path.name.isdigit() else b""
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"serve\0" + os.fsencode(bundle) in command:
            found.append(int(path.name))
    return found


@pytest.fixture
def own_bundle(demo_bundle, tmp_path):
    """The bundle under a path of this test's own, by which its servers are known."""
    path = tmp_path / "bundle"
    path.symlink_to(demo_bundle)
    return path


def test_startup(own_bundle, tmp_path):
    done = bench(
        *("startup", own_bundle, *ENGINE, "--served-model-name", "shown", "--api-key", "k"),
        *("--num-iters-cold", 1, "--num-iters-warmup", 0, "--num-iters-warm", 1),
        *("--output-json", tmp_path / "out.json"),
    )
    tree = json.loads((tmp_path / "out.json").read_text())
    for phase in ("cold", "warm"):
        (health,), (completion,) = (tree[phase][m]["seconds"] for m in ("health", "completion"))
        assert 0 < health < completion
        assert tree[phase]["health"]["median"] == health
    lines = done.stdout.splitlines()
    assert lines[0] == lines[2] == lines[-1] == "=" * 60
    assert lines[1].strip() == "STARTUP TIME BENCHMARK RESULTS"
    assert processes_of(own_bundle) == []


def test_startup_shows_why_a_server_does_not_start(own_bundle):
    flags = ["--max-model-len", "100000", "--num-gpu-blocks-override", "4"]
    done = bench("startup", own_bundle, *flags, "--num-iters-cold", 0, code=1)
    assert re.search(r"the server exited with code [12]\n", done.stderr)
    assert "--max-model-len" in done.stderr


def test_startup_leaves_nothing_behind(own_bundle):
    command = [sys.executable, "-m", "ortloom", "bench", "startup", str(own_bundle), *ENGINE]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as run:
        end = time.monotonic() + 30
        while not processes_of(own_bundle):
            assert time.monotonic() < end
            time.sleep(0.01)
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert err.splitlines()[-1] == "ortloom: interrupted"
    assert processes_of(own_bundle) == []
