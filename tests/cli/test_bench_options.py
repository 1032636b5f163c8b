"""`ortloom bench` as it is typed: refusals with exit codes, defaults, help, what is imported."""

import subprocess
import sys

import pytest

from ortloom.bench.context import context_before_export
from ortloom.cli import main
from ortloom.commands.bench import BENCHMARKS, engine
from ortloom.commands.bench.options import read_options
from ortloom.commands.bench.serve_options import serve_run
from ortloom.commands.bench.tables import bench_table, groups
from ortloom.config import Config, ModelConfig
from ortloom.errors import ConfigError

COMMANDS = ("serve", "latency", "throughput", "startup")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("nothing", "unknown benchmark: nothing"),
        ("latncy", "unknown benchmark: latncy (did you mean latency?)"),
        ("mm-processor", "not in this build yet: image, audio and video input is not built"),
        ("mm-processor --num-prompts 3", "'mm-processor' is known, but not in this build yet"),
        ("serve --requst-rate 3", "unrecognized arguments: --requst-rate (did you mean --request"),
        ("serve model", "unrecognized arguments: model"),
        ("serve --num-prompts x", "argument --num-prompts: invalid integer: 'x'"),
        ("serve --num-prompts 0", "argument --num-prompts: must be at least 1, got 0"),
        ("serve --request-rate 0", "argument --request-rate: must be above 0, got 0"),
        ("serve --request-rate nan", "argument --request-rate: must be a number, got nan"),
        ("serve --burstiness inf", "argument --burstiness: must be finite"),
        ("serve --port 70000", "argument --port: must be from 1 to 65535"),
        ("serve --max-concurrency 0", "argument --max-concurrency: must be at least 1"),
        ("serve --base-url ftp://x", "must be http://HOST"),
        ("serve --backend openai-chat --endpoint /v1/completions", "not the path of chat"),
        ("serve --backend openai-embeddings", "'openai-embeddings' is known, but not in this"),
        ("serve --backend grpc", "argument --backend: invalid choice: 'grpc'"),
        ("serve --header Authorization", "argument --header: expected KEY=VALUE"),
        ("serve --metadata =x", "argument --metadata: expected KEY=VALUE"),
        ("serve --goodput speed:3", "expected NAME:MILLISECONDS with a name of ttft, tpot, e2el"),
        ("serve --goodput ttft:fast", "argument --goodput: invalid number: 'fast'"),
        ("serve --percentile-metrics ttft,p99", "unknown metric 'p99'"),
        ("serve --metric-percentiles 50,101", "argument --metric-percentiles: must be from 0"),
        ("serve --metric-percentiles x", "expected numbers with commas between"),
        ("serve --ramp-up-strategy linear", "needs --ramp-up-start-rps and --ramp-up-end-rps"),
        ("serve --ramp-up-end-rps 3", "need --ramp-up-strategy"),
        ("serve --ramp-up-strategy linear --ramp-up-start-rps 9 --ramp-up-end-rps 1", "at most"),
        ("serve --dataset-name sharegpt", "argument --dataset-path: data set 'sharegpt' needs"),
        ("serve --dataset-path x", "data set 'random' reads no file"),
        ("serve --dataset-name hf", "'hf' is known, but not in this build yet"),
        ("serve --dataset-name random-mm", "image, audio and video input is not built"),
        ("serve --tokenizer /nowhere", "'/nowhere' is no folder with a tokenizer.json"),
        ("serve --extra-body [1]", "argument --extra-body: must be a JSON object"),
        ("serve --probe-request-rate 1", "argument --probe-request-rate: known, but not in this"),
        ("latency", "no model is named: ortloom bench latency MODEL"),
        ("latency x --batch-size 0", "argument --batch-size: must be at least 1, got 0"),
        ("latency x --host h", "unrecognized arguments: --host"),
        ("latency x --output-json /nowhere/x.json", "cannot be written: no such folder"),
        ("throughput x --backend hf", "argument --backend: 'hf' cannot be had here"),
        ("throughput x --dataset a --dataset-path b", "are the same setting"),
        ("startup x --num-iters-cold 0 --num-iters-warm 0", "there is nothing to measure"),
        ("startup x --host 0.0.0.0", "servers are started on 127.0.0.1"),
        ("startup x --uds /tmp/x", "servers are started on a port of the loopback"),
    ],
)
def test_refusals(capsys, line, text):
    assert main(["bench", *line.split()]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    named = [word for word in line.split()[:1] if word in BENCHMARKS]
    assert err.splitlines()[-1].startswith(f"{' '.join(['ortloom bench', *named])}: error: ")
    assert text in err.splitlines()[-1]


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("serve --port 1", "http://127.0.0.1:1 cannot be reached: Connection refused"),
        ("serve --port 1 --model x", "http://127.0.0.1:1 cannot be reached: Connection refused"),
        (
            "serve --port 1 --model x --skip-tokenizer-init --dataset-name custom "
            "--dataset-path /nowhere",
            "the data set '/nowhere' cannot be read: No such file or directory",
        ),
        ("serve --save-result --result-dir /dev/null/x", "'/dev/null/x' cannot be made: Not a"),
        ("startup /nowhere", "'/nowhere' does not exist"),
        ("latency /nowhere", "'/nowhere' does not exist"),
    ],
)
def test_failures(capsys, line, text):
    assert main(["bench", *line.split()]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err.splitlines()[-1]


def run_of(line, environ=None):
    options = read_options("serve", line.split(), "", "")
    assert options is not None
    return serve_run(options, environ or {})


def test_serve_defaults(capsys):
    run = run_of("")
    assert run.base_url == "http://127.0.0.1:8000"
    assert (run.api, run.endpoint, run.label) == ("completions", "/v1/completions", "openai")
    assert run.request_rate == float("inf")
    assert (run.shown, run.percentiles) == (("ttft", "tpot", "itl"), (99.0,))
    assert (run.dataset.name, run.dataset.num_prompts) == ("random", 1000)
    assert (run.dataset.random_input_len, run.dataset.random_output_len) == (1024, 128)
    assert run.fields == {}
    assert "--temperature" in run.warnings[0]
    assert run.headers == {}
    assert run.request_id_prefix.startswith("bench-")
    assert len(run.request_id_prefix) == len("bench-12345678-")


def test_serve_values():
    run = run_of(
        "--backend openai-chat --host ::1 --port 9 --temperature 0 --top_k 5 --num-prompts 2k "
        "--request-rate 2.5 --metric-percentiles 50,99.9 --percentile-metrics e2el "
        "--goodput ttft:100 e2el:2000 --extra-body.min_tokens 3 --header X-A=b=c --label mine "
        "--random-range-ratio 0.5 --max-conc 4 --metadata a=1 b=2"
    )
    assert run.base_url == "http://[::1]:9"
    assert (run.api, run.endpoint) == ("chat", "/v1/chat/completions")
    assert run.fields == {"temperature": 0.0, "top_k": 5, "min_tokens": 3}
    assert run.dataset.num_prompts == 2000
    assert run.dataset.chat
    assert run.dataset.range_ratio == (0.5, 0.5)
    assert (run.request_rate, run.max_concurrency) == (2.5, 4)
    assert run.percentiles == (50.0, 99.9)
    assert run.goals == {"ttft": 100.0, "e2el": 2000.0}
    assert run.headers == {"X-A": "b=c"}
    assert run.metadata == {"a": "1", "b": "2"}
    assert run.warnings == ()


def test_keys():
    environ = {"OPENAI_API_KEY": "one", "VLLM_API_KEY": "two"}
    assert run_of("", environ).headers == {"Authorization": "Bearer one"}
    assert run_of("", {"VLLM_API_KEY": "two"}).headers == {"Authorization": "Bearer two"}
    assert run_of("--header authorization=x", environ).headers == {"authorization": "x"}


def test_a_config_file(tmp_path):
    path = tmp_path / "bench.yaml"
    path.write_text("num-prompts: 7\nignore_eos: true\nlabel: filed\n")
    run = run_of(f"--config {path} --label typed")
    assert (run.dataset.num_prompts, run.ignore_eos, run.label) == (7, True, "typed")


def test_notices(capsys):
    run = run_of("--trust-remote-code --save-detailed --temperature 0")
    assert "--trust-remote-code: taken only so that" in capsys.readouterr().err
    assert run.warnings == (
        "--save-detailed does nothing without --save-result or --append-result",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_tables(command):
    table = bench_table(command)
    names = [name for flag in table.flags for name in (flag.name, *flag.aliases)]
    assert len(set(names)) == len(names)
    for flag in table.flags:
        assert flag.group in groups(command)
        assert flag.help or table.reason(flag)
        assert flag.kind != "choice" or flag.default in (None, *flag.choices)


@pytest.mark.parametrize("command", COMMANDS)
def test_help(capsys, command):
    assert main(["bench", command, "--help"]) == 0
    overview = capsys.readouterr().out
    assert overview.startswith(f"usage: ortloom bench {command}")
    assert main(["bench", command, "--help=all"]) == 0
    everything = capsys.readouterr().out
    for flag in bench_table(command).flags:
        assert flag.name in everything
    assert main(["bench", command, "--help=disable-tqdm"]) == 0
    assert "no progress bar" in capsys.readouterr().out


def test_help_of_bench(capsys):
    assert main(["bench"]) == 0
    out = capsys.readouterr().out
    for command in COMMANDS:
        assert f"  {command}" in out


def test_unknown_flags_are_refused_in_a_config_file(tmp_path):
    path = tmp_path / "bench.yaml"
    path.write_text("num-prompt: 7\nreqest-rate: 2\n")
    with pytest.raises(ConfigError, match="--reqest-rate"):
        run_of(f"--config {path}")


def test_the_load_client_needs_no_engine():
    code = (
        "import sys; import ortloom.commands.bench.serve, ortloom.commands.bench.startup\n"
        "heavy = {'torch', 'transformers', 'onnx', 'onnxruntime', 'sanic', 'httpx', 'zmq'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.parametrize("command", ["latency", "throughput"])
@pytest.mark.parametrize(
    ("flags", "context"),
    [
        ("--input-len 99999999", 64),
        ("--output-len 99999999", 64),
        ("--input-len 20 --output-len 13 --max-model-len 32", 32),
    ],
)
def test_lengths_are_compared_with_a_checkpoints_context_before_it_is_exported(
    command, flags, context, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(engine, "with_bundle", lambda plan: pytest.fail("it is exported"))
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert main(["bench", command, str(tmp_path), *flags.split()]) == 2
    assert f"does not fit the context of {context} tokens" in capsys.readouterr().err


@pytest.mark.parametrize("config", [None, "no JSON", "[]", '{"max_position_embeddings": null}'])
def test_a_context_that_is_not_known_yet_is_compared_later(config, tmp_path):
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    model = Config(model=ModelConfig(bundle=str(tmp_path)))
    assert context_before_export(model) is None
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 64}')
    assert context_before_export(model) == 64
    (tmp_path / "manifest.json").touch()
    assert context_before_export(model) is None
