"""What a second front gives where one is not enough.

    python -m benchmarks.sse.fronts [--fronts 1,2] [--streams 64] [--tokens 16] [--rate 200]
                                    [--rounds 5] [--seconds 4]

64 connections ask for short chat streams again and again. The scripted engine would finish 800 a
second, which is more than one front can take in, so the fronts are what is waited for. A front that
is behind puts the tokens of several steps into one event; tokens are those of whole streams. Client
and engine need processor time of their own: `cores_…` tells what each side used. Medians over the
rounds, in turns.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from benchmarks.sse.__main__ import CASES
from benchmarks.sse.bundle import write_bundle
from benchmarks.sse.client import Window
from benchmarks.sse.servers import Ours


def row(count: int, tokens: int, windows: list[Window]) -> dict[str, object]:
    """The figures of a number of fronts."""
    return {
        "fronts": count,
        "tokens_per_second": round(_median(w.ended * tokens / w.seconds for w in windows)),
        "events_per_second": round(_median(w.events / w.seconds for w in windows)),
        "streams_per_second": round(_median(w.ended / w.seconds for w in windows), 1),
        "cores_fronts": [
            round(_median(w.cpu[i] / w.seconds for w in windows), 2) for i in range(count)
        ],
        "cores_engine": round(_median(w.cpu[count] / w.seconds for w in windows), 2),
        "cores_client": round(_median(w.client_cpu / w.seconds for w in windows), 2),
    }


def _median(values: Iterable[float]) -> float:
    return statistics.median(values)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sse.fronts")
    counts = [1, 2]
    parser.add_argument("--fronts", type=lambda t: [int(n) for n in t.split(",")], default=counts)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    path, fields = CASES["chat"]
    body = json.dumps({**fields, "max_tokens": options.tokens})
    seen: dict[int, list[Window]] = {count: [] for count in options.fronts}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ortloom-sse-")))
        bundle = write_bundle(folder / "bundle")
        servers = {
            count: stack.enter_context(Ours(bundle, folder, 1 / options.rate, count))
            for count in options.fronts
        }
        for _ in range(options.rounds):
            for count, server in servers.items():
                window = server.window(
                    path,
                    body,
                    options.streams,
                    options.seconds,
                    again=True,
                    beside=[server.engine_pid],
                )
                seen[count].append(window)
    print(json.dumps({"processors": os.cpu_count()}))
    for count, windows in seen.items():
        print(json.dumps(row(count, options.tokens, windows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
