"""The first figures of the project: cold start, memory, and int4 decode against a peer.

`python -m benchmarks.first [--starts 10] [--rounds 7] [--only cold,memory,int4]` sets up what it
needs under build/, prints one line a figure with its goal, and writes build/first.json.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.memory import pss_bytes, tree

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "e2e"))

from served import Served, run_cli  # noqa: E402

BUILD = ROOT / "build"
PROMPT_TOKENS = NEW_TOKENS = 128
MIB = 1024 * 1024


def bundle(name: str, *flags: str) -> Path:
    """The demo model's bundle, exported on first use."""
    out = BUILD / "bench" / name
    if not out.exists():
        from ortloom.demo import fetch

        out.parent.mkdir(parents=True, exist_ok=True)
        result = run_cli("export", str(fetch(BUILD / "demo")), "-o", str(out), *flags)
        if result.returncode:
            raise SystemExit(result.stderr)
    return out


def cold_start(starts: int) -> dict[str, object]:
    """Spawn to first 200 on /health and to the answer of a completion sent at that moment.

    Files are in the page cache after an unmeasured first start; every start is a new process.
    """
    health, answered = [], []
    path = bundle("fp32")
    for attempt in range(starts + 1):
        server = Served(path)
        begin = time.perf_counter()
        server.spawn()
        try:
            server.wait_healthy()
            ready = time.perf_counter() - begin
            reply = server.client.post("/v1/completions", json={"prompt": "Hi", "max_tokens": 1})
            done = time.perf_counter() - begin
            reply.raise_for_status()
        finally:
            server.stop()
            server.client.close()
        if attempt:
            health.append(ready)
            answered.append(done)
    return {
        "median_health_s": statistics.median(health),
        "median_answered_s": statistics.median(answered),
        "health_s": health,
        "answered_s": answered,
        "goal": "median under 2 s",
        "met": statistics.median(answered) < 2.0,
    }


def memory() -> dict[str, object]:
    """PSS of supervisor, engine and one front after a load that touched every KV block.

    Prompts are all different and finished ones stay in the prefix cache, so no block is used twice
    before each was used once.
    """
    from ortloom.models.manifest import Manifest

    path = bundle("fp32")
    manifest = Manifest.load(path)
    pool = 256 * MIB
    with Served(path, "--kv-cache-memory-bytes", str(pool)) as server:
        tokens = pool // manifest.bytes_per_token()
        length, sent = 1024, 0
        while sent < 1.25 * tokens:
            ids = [(17 * sent + i) % 40000 + 300 for i in range(length)]
            body = {"prompt": ids, "max_tokens": 4, "ignore_eos": True}
            server.client.post("/v1/completions", json=body).raise_for_status()
            sent += length
        assert server.process is not None
        processes = {}
        for pid in tree(server.process.pid):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            name = b" ".join(command[1:3]).decode()
            processes[f"{pid} {name}"] = pss_bytes(pid)
    weights = manifest.weight_bytes("cpu")
    limit = weights + pool + 300 * 1000 * 1000
    total = sum(processes.values())
    return {
        "pss_bytes": total,
        "limit_bytes": limit,
        "weight_bytes": weights,
        "kv_pool_bytes": pool,
        "processes": processes,
        "met": total < limit,
    }


class Stream:
    """A decode process driven one repetition at a time, so that two can be interleaved."""

    def __init__(self, *command: object) -> None:
        self.process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self.read()

    def read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        return json.loads(line)

    def measure(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("run\n")
        self.process.stdin.flush()
        return self.read()["tokens_per_second"]

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("quit\n")
        self.process.stdin.close()
        self.process.wait(30)


def int4_decode(rounds: int) -> dict[str, object]:
    """Single-stream decode, both in process, interleaved: ratio of medians."""
    from benchmarks.peers.genai_setup import prepare
    from ortloom.demo import fetch

    python, model = prepare(BUILD / "peers", fetch(BUILD / "demo"))
    sizes = (PROMPT_TOKENS, NEW_TOKENS)
    peer = Stream(python, ROOT / "benchmarks" / "peers" / "ort_genai.py", model, *sizes)
    path = bundle("int4", "--quant", "int4")
    ours = Stream(sys.executable, "-m", "benchmarks.engine_decode", path, *sizes)
    a, b = [], []
    for _ in range(rounds):
        a.append(ours.measure())
        b.append(peer.measure())
    ours.close()
    peer.close()
    ratio = statistics.median(a) / statistics.median(b)
    return {
        "ortloom_tokens_per_second": statistics.median(a),
        "onnxruntime_genai_tokens_per_second": statistics.median(b),
        "ortloom_all": a,
        "onnxruntime_genai_all": b,
        "ratio": ratio,
        "goal": "ratio at least 1.0",
        "met": ratio >= 1.0,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="cold,memory,int4")
    options = parser.parse_args()
    figures: dict[str, dict[str, object]] = {}
    for name in options.only.split(","):
        if name == "cold":
            figures[name] = cold_start(options.starts)
        elif name == "memory":
            figures[name] = memory()
        elif name == "int4":
            figures[name] = int4_decode(options.rounds)
        else:
            parser.error(f"unknown figure '{name}'")
        print(f"{name}: {json.dumps(figures[name], indent=1)}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    machine = {"cpus": os.cpu_count(), "platform": platform.platform()}
    record = {"commit": commit.stdout.strip(), "machine": machine, "figures": figures}
    (BUILD / "first.json").write_text(json.dumps(record, indent=1))
    return 0 if all(figure["met"] for figure in figures.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
