"""Ten minutes of everything at once:

    python -m benchmarks.soak BUNDLE [--seconds 600] [--concurrent 64] [--seed 0]

Starts a server, asks for `--seconds` seconds in rounds, prints a JSON report, and exits 1 if
anything was wrong: an answer that is not that of its solo run (tokens, texts, logprobs, reasons,
streamed or whole), chunks out of order, blocks still held when idle, or memory that grows.
"""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from benchmarks.soak.run import Soak

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "e2e"))
from served import Served

FLAGS = ("--max-model-len", "512", "--num-gpu-blocks-override", "64", "--max-num-seqs", "64")
GROWTH = 64 * 2**20
"""Bytes a process may grow by after warm-up."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("bundle")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--round-seconds", type=float, default=20)
    parser.add_argument("--concurrent", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the server ends with us
    with Served(arguments.bundle, *FLAGS) as server:
        pids = {
            "engine": server.pid_of("ortloom.runtime.engine_process"),
            "front": server.pid_of("ortloom.server.front"),
        }
        soak = Soak(
            server.url,
            pids,
            arguments.seconds,
            arguments.concurrent,
            arguments.seed,
            round_seconds=arguments.round_seconds,
        )
        report = asyncio.run(soak.run())
        preempted = server.metrics().get("vllm:num_preemptions_total", 0)
    grown = report.growth()
    told = {
        "counts": dict(report.counts),
        "preemptions": preempted,
        "memory_mib": {n: [round(v / 2**20, 1) for v in vs] for n, vs in report.memory.items()},
        "growth_mib": {name: round(value / 2**20, 1) for name, value in grown.items()},
        "wrong": report.wrong,
    }
    print(json.dumps(told, indent=1))
    return int(bool(report.wrong) or any(value > GROWTH for value in grown.values()))


if __name__ == "__main__":
    sys.exit(main())
