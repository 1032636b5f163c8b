"""`ortloom bench sweep`: sets of parameters, real runs, points between, figures."""

import csv
import json
import re
import sys
from pathlib import Path

import pytest
from serving import HERE, Server, free_port

from ortloom.cli import main
from ortloom.errors import BenchmarkFailed, ConfigError
from ortloom.sweep.experiment import read_rows
from ortloom.sweep.params import ParamSet, linked, read_links, read_params, with_params
from ortloom.sweep.selection import Point, binned, filtered, frontier, grouped, points
from ortloom.sweep.serving import between
from ortloom.sweep.starting import flat

# a server that answers /health and counts resets, and a benchmark that leaves a result
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def do_POST(self):
        if self.path == "/reset_prefix_cache":
            open(sys.argv[1], "a").write("reset ")
        self.do_GET()
    def log_message(self, *_):
        pass
open(sys.argv[1], "a").write(" ".join(sys.argv[4:]) + "; ")
HTTPServer(("127.0.0.1", int(sys.argv[3])), Handler).serve_forever()
"""
BENCH = """
import json, os, sys
given = dict(zip(sys.argv[1:], sys.argv[2:]))
if given.get("--fail"):
    sys.exit("a reason")
many = float(given.get("--max-concurrency", 1))
data = {"request_throughput": min(many, 9.0), "mean_e2el_ms": 1000.0, "ttfts": [1]}
place = os.path.join(given["--result-dir"], given["--result-filename"])
open(place, "w").write(json.dumps(data))
"""


def test_params_replace_and_add():
    command = ["serve", "m", "--max_num_seqs", "4", "--x=1", "--names", "a", "b", "--last"]
    made = with_params(command, {"max-num-seqs": 8, "x": [1, "b"], "y": {"k": 2}, "last": False})
    assert made == [
        *("serve", "m", "--names", "a", "b", "--max-num-seqs", "8"),
        *("--x", "1", "b", "--y", '{"k": 2}', "--no-last"),
    ]
    assert with_params(["a", "--b", "c"], {"b": None, "d": True}) == ["a", "--d"]


def test_sets_come_from_json_or_files(tmp_path):
    (tmp_path / "p.json").write_text('{"fast": {"a": 1}, "slow": {"a": 2}}')
    assert [p.label for p in read_params("--x", str(tmp_path / "p.json"))] == ["fast", "slow"]
    assert [p.label for p in read_params("--x", '[{"a": "x/y", "b": true}]')] == ["a=x_y-b=true"]
    assert read_params("--x", None) == [ParamSet({})]
    for bad in ("/nowhere", "[1]", "{", '[{"a": 1}, {"a": 1}]'):
        with pytest.raises(ConfigError, match="argument --x"):
            read_params("--x", bad)
    links = read_links("max_num_seqs=max-concurrency")
    assert linked(ParamSet({"max_num_seqs": 4}), ParamSet({"max_concurrency": 4}), links)
    assert not linked(ParamSet({"max_num_seqs": 4}), ParamSet({"max_concurrency": 8}), links)
    with pytest.raises(ConfigError, match="--link-vars"):
        read_links("a")


def test_points_between_the_ends():
    serial = [{"request_throughput": 2.0, "mean_e2el_ms": 500.0}]
    batch = [{"request_throughput": 20.0, "mean_e2el_ms": 2000.0}]
    assert between(serial, batch, "request_rate", 4) == [8, 14]
    assert between(serial, batch, "max_concurrency", 3) == [20]  # between 1 and 40 in flight


def test_choosing_rows():
    rows = [{"c": 1, "m": "a"}, {"c": 8, "m": "b"}, {"c": 15, "m": "a"}, {"m": "a"}]
    assert filtered(rows, "c>=8, m==a") == [rows[2]]
    assert [r.get("c") for r in binned(rows, "c%10")] == [0.0, 0.0, 10.0, None]
    assert list(grouped(rows, ["m"])) == ["m=a", "m=b"]
    assert list(grouped(rows[:3], ["c"])) == ["c=1", "c=8", "c=15"]
    runs = [{"x": 1, "y": 4, "combination": "A"}, {"x": 3, "y": 8, "combination": "A"}]
    assert points(runs, "x", "y") == [Point(2.0, 6.0, 4.0, 8.0)]
    spread = [Point(x, y, y, y) for x, y in ((1, 9), (2, 5), (3, 7), (4, 1))]
    assert [(p.x, p.y) for p in frontier(spread)] == [(1, 9), (3, 7), (4, 1)]
    assert flat({"a": {"b": {"c": 1}}, "d": 2}) == {"a_b_c": 1, "d": 2}
    for bad in ("c", "c~3"):
        with pytest.raises(ConfigError):
            filtered(rows, bad)


@pytest.fixture
def commands(tmp_path):
    """Flags of a sweep over the stand-ins, and the file the server writes to."""
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "bench.py").write_text(BENCH)
    seen, port = tmp_path / "seen", free_port()
    return [
        *("--serve-cmd", f"{sys.executable} {tmp_path}/server.py {seen} --port {port}"),
        *("--bench-cmd", f"{sys.executable} {tmp_path}/bench.py --num-prompts 20"),
        *("--num-runs", "1", "-o", str(tmp_path / "out"), "-e", "x"),
    ], seen


def sweep(*arguments):
    return main(["bench", "sweep", *arguments])


def test_servers_times_loads_and_resume(commands, tmp_path, capsys):
    flags, seen = commands
    params = [
        *("--serve-params", '{"a": {"flag": 1}, "b": {"flag": 2}}'),
        *("--bench-params", '[{"max_concurrency": 2}, {"max_concurrency": 4}]'),
    ]
    assert sweep("serve", *flags, *params) == 0
    # each server once, with its flag, and its cache reset after each run
    assert seen.read_text() == "--flag 1; reset reset --flag 2; reset reset "
    folder = tmp_path / "out" / "x"
    assert sorted(p.name for p in folder.iterdir() if p.is_dir()) == [
        f"SERVE-{s}-BENCH-max_concurrency={c}" for s in "ab" for c in (2, 4)
    ]
    with (folder / "summary.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(r["flag"], r["max_concurrency"], r["request_throughput"]) for r in rows] == [
        ("1", "2", "2.0"),
        ("1", "4", "4.0"),
        ("2", "2", "2.0"),
        ("2", "4", "4.0"),
    ]
    assert sweep("serve", *flags, *params) == 2  # the folder is there already
    (folder / "SERVE-b-BENCH-max_concurrency=4" / "run=0.json").unlink()
    assert sweep("serve", *flags, *params, "--resume") == 0
    assert seen.read_text().count("reset") == 5
    capsys.readouterr()
    assert sweep("serve", *flags, "--serve-params", '[{"flag": 3}]', "--dry-run") == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("--flag 3")
    assert "--save-result --result-dir" in second
    assert "--flag 3" not in seen.read_text()


def test_a_workload_finds_its_points(commands, tmp_path):
    flags, _ = commands
    asked = ("--workload-var", "max_concurrency", "--workload-iters", "3")
    assert sweep("serve_workload", *flags, *asked) == 0
    rows = read_rows(tmp_path / "out" / "x")
    # 1 in flight alone, 9 at most: 5 is between
    assert sorted(int(row["max_concurrency"]) for row in rows) == [1, 5, 20]


def test_failures_are_told(commands, capsys):
    flags, _ = commands
    assert sweep("serve", *flags, "--bench-params", '[{"fail": "yes"}]') == 1
    assert "a reason" in capsys.readouterr().err
    broken = ["serve", "--serve-cmd", "false", *flags[2:-1], "y"]
    assert sweep(*broken) == 1
    assert "the server ended with code 1" in capsys.readouterr().err
    assert sweep("serve", *flags, "--resume", "--serve-params", "/nowhere") == 2


def test_startup_params_must_be_known(tmp_path, capsys):
    flags = ["startup", "-o", str(tmp_path), "-e", "x", "--dry-run", "--num-runs", "1"]
    flags += ["--serve-params", '[{"max_num_seqs": 4, "colour": "red"}]']
    assert sweep(*flags) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("ortloom bench startup --max_num_seqs 4 --output-json ") or (
        shown.out.startswith("ortloom bench startup --max-num-seqs 4 --output-json ")
    )
    assert "'colour' is no flag of bench startup" in shown.err
    assert sweep(*flags, "--strict-params") == 2


def test_the_real_commands_and_their_figures(bundle, tmp_path, capsys, monkeypatch):
    """A server of this project under `bench serve`, then curves and the frontier as pictures."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parent / 'runtime'}")
    server = Server(bundle)
    try:
        bench = f"{sys.executable} -m ortloom bench serve --model tiny --tokenizer {bundle}"
        flags = [
            *("--serve-cmd", " ".join(server.command)),
            *("--bench-cmd", f"{bench} --base-url {server.url} --random-input-len 8"),
            *("--num-runs", "1", "-o", str(tmp_path), "-e", "x"),
        ]
        loads = [{"num_prompts": 4, "random_output_len": n, "max_concurrency": n} for n in (2, 4)]
        assert sweep("serve", *flags, "--bench-params", json.dumps(loads)) == 0
    finally:
        server.client.close()
    folder = tmp_path / "x"
    rows = read_rows(folder)
    assert [row["total_output_tokens"] for row in rows] == [8, 16]
    assert [row["completed"] for row in rows] == [4, 4]
    capsys.readouterr()
    assert sweep("plot", str(folder), "--curve-by", "random_output_len", "--scale-y", "log") == 0
    assert sweep("plot_pareto", str(folder)) == 0
    for line in capsys.readouterr().out.splitlines():
        assert Path(line).read_bytes().startswith(b"\x89PNG")
    assert (folder / "FIGURE.png").is_file()
    assert (folder / "PARETO.png").is_file()
    assert sweep("plot", str(folder), "--var-y", "no_such") == 1
    assert sweep("plot", str(folder), "--dry-run", "--filter-by", "max_concurrency>2") == 0
    assert re.search(r"^\d+\.\d+\t\d", capsys.readouterr().out, re.M)


def test_plots_name_their_extra(monkeypatch):
    from ortloom.sweep.figures import require_matplotlib

    require_matplotlib()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BenchmarkFailed, match=r"pip install 'ortloom\[plot\]'"):
        require_matplotlib()
