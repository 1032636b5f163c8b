"""The benchmark of HTTP and events, in small: it runs, and it tells a cheap server from a dear
one."""

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.sse.__main__ import row
from benchmarks.sse.client import Window

ROOT = Path(__file__).resolve().parents[2]


def window(events, cpu):
    return Window(events=events, ended=0, size=events * 200, seconds=1.0, cpu=cpu, client_cpu=0.1)


def test_the_figures_of_a_case():
    bare = [window(1000, [0.04]), window(1000, [0.05]), window(2000, [0.2])]
    ours = [window(1000, [0.06, 0.02]), window(500, [0.05]), window(1000, [0.11])]
    told = row("chat", bare, ours)
    assert told["bare_us"] == 50.0
    assert told["front_us"] == 100.0
    assert told["front_share"] == 10.0
    assert told["ratio"] == 2.0  # 2.0, 2.0 and 1.1
    assert told["excess_us"] == 40.0  # 40, 50 and 10
    assert told["bytes_per_event"] == 200


def ran(module, *arguments):
    command = [sys.executable, "-m", module, "--streams", "4", "--rounds", "1", *arguments]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=300, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_every_case_is_measured():
    lines = ran("benchmarks.sse", "--seconds", "0.5", "--cases", "chat,completions-logprobs")
    assert [line["case"] for line in lines] == ["chat", "completions-logprobs"]
    for line in lines:
        assert line["bare_us"] > 1
        assert line["front_us"] > 1
        assert line["events_per_second"] > 0
        assert 100 < line["bytes_per_event"] < 5000


def test_several_fronts_are_measured():
    head, line = ran("benchmarks.sse.fronts", "--seconds", "2", "--fronts", "2", "--tokens", "4")
    assert line["cores_engine"] > 0
    assert head["processors"] >= 1
    assert line["streams_per_second"] > 0
    assert line["tokens_per_second"] >= 4 * int(line["streams_per_second"])
    assert len(line["cores_fronts"]) == 2
