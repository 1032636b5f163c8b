"""What HTTP and server-sent events cost.

    python -m benchmarks.sse [--streams 64] [--rate 20] [--rounds 5] [--seconds 4]
                             [--cases chat,chat-logprobs,completions,completions-logprobs]
                             [--bundle BUNDLE]

In one run and in turns, 64 streams of a bare Sanic server that repeats an event made before, and
of our front (supervisor, front and messages are the real ones; the engine computes nothing and
paces `--rate` tokens a second and stream, one an event). Counted are the CPU seconds of the server
process, for the front the front's, a token. The bare server repeats an event of the same case.

`share` is percent of one core for 1 000 tokens a second, `ratio` the front's by the bare server's,
`excess` their difference in microseconds a token. Medians over the rounds.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.sse.bundle import write_bundle
from benchmarks.sse.client import Window
from benchmarks.sse.servers import Bare, Ours

_ENDLESS = {"model": "model", "stream": True, "max_tokens": 900_000, "ignore_eos": True}
_CHAT = {**_ENDLESS, "messages": [{"role": "user", "content": "Tell me of the sea."}]}
_TEXT = {**_ENDLESS, "prompt": "Tell me of the sea."}
CASES = {
    "chat": ("/v1/chat/completions", _CHAT),
    "chat-logprobs": ("/v1/chat/completions", {**_CHAT, "logprobs": True, "top_logprobs": 5}),
    "completions": ("/v1/completions", _TEXT),
    "completions-logprobs": ("/v1/completions", {**_TEXT, "logprobs": 5}),
}
"""Name -> path and body."""


def micros(window: Window) -> float:
    """CPU microseconds an event."""
    return 1e6 * sum(window.cpu) / max(1, window.events)


def row(name: str, bare: list[Window], ours: list[Window]) -> dict[str, object]:
    """The figures of a case."""
    pairs = [(micros(b), micros(o)) for b, o in zip(bare, ours, strict=True)]
    base = statistics.median(map(micros, bare))
    cost = statistics.median(map(micros, ours))
    return {
        "case": name,
        "bare_us": round(base, 1),
        "front_us": round(cost, 1),
        "bare_share": round(base / 10, 2),
        "front_share": round(cost / 10, 2),
        "ratio": round(statistics.median(o / b for b, o in pairs), 2),
        "excess_us": round(statistics.median(o - b for b, o in pairs), 1),
        "events_per_second": round(statistics.median(w.events / w.seconds for w in ours)),
        "bare_per_second": round(statistics.median(w.events / w.seconds for w in bare)),
        "bytes_per_event": round(ours[-1].size / max(1, ours[-1].events)),
    }


def run(options: argparse.Namespace) -> list[dict[str, object]]:
    """All cases."""
    step = 1 / options.rate
    seen: dict[str, tuple[list[Window], list[Window]]] = {c: ([], []) for c in options.cases}
    with tempfile.TemporaryDirectory(prefix="ortloom-sse-") as made:
        folder = Path(made)
        bundle = write_bundle(folder / "bundle") if options.bundle is None else options.bundle
        with Bare() as bare, Ours(bundle, folder, step) as ours:
            bodies = {c: (CASES[c][0], json.dumps(CASES[c][1])) for c in options.cases}
            events = {c: ours.sample(*bodies[c]).decode() for c in options.cases}
            for _ in range(options.rounds):
                for case in options.cases:
                    path, body = bodies[case]
                    streams, seconds = options.streams, options.seconds
                    seen[case][0].append(
                        bare.window(f"/echo?step={step}", events[case], streams, seconds)
                    )
                    seen[case][1].append(ours.window(path, body, streams, seconds))
    return [row(case, *windows) for case, windows in seen.items()]


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sse")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--cases", type=lambda text: text.split(","), default=list(CASES))
    parser.add_argument("--bundle", type=Path)
    options = parser.parse_args()
    for line in run(options):
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
