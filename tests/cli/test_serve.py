"""`ortloom serve` as a user types it: exit codes, lines on stderr, help, secrets."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

KEY = "sk-marked-0123456789"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--max-seqs", "3"], "unrecognized arguments: --max-seqs (did you mean --max-num-seqs?)"),
        (["--port", "x"], "argument --port: invalid integer: 'x'"),
        (["-tp", "2"], "argument -tp: known, but not in this build yet"),
        (["--grpc"], "argument --grpc: cannot be had here: HTTP is the only protocol"),
        (["--chat-template", "missing.jinja"], "cannot be opened: No such file or directory"),
        (["--enable-auto-tool-choice"], "needs --tool-call-parser"),
    ],
)
def test_argument_errors_exit_2_without_a_traceback(ortloom, arguments, text):
    done = ortloom("serve", "model", *arguments)
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("usage: ortloom serve")
    assert second.startswith("ortloom serve: error: ")
    assert text in second
    assert done.stdout == ""


def test_a_wrong_path_exits_1(ortloom, tmp_path):
    done = ortloom("serve", tmp_path / "nothing")
    assert done.returncode == 1
    assert "does not exist" in done.stderr.splitlines()[-1]
    done = ortloom("serve", tmp_path)
    assert done.returncode == 1
    assert "neither a bundle (no manifest.json) nor a checkpoint" in done.stderr
    assert "Traceback" not in done.stderr


def test_start_lines(ortloom):
    done = ortloom("serve", "missing", "--enforce-eager", "--max-num-seqs", "8", "--seed", "0")
    lines = done.stderr.splitlines()
    assert lines[0] == (
        "warning: --enforce-eager: taken only so that published commands run; it does nothing "
        "here: the graphs are compiled ahead: nothing is captured or compiled at run time"
    )
    assert "without an API key" in lines[1]
    assert lines[2].startswith("ortloom version ")
    shown = json.loads(lines[3].removeprefix("non-default args: "))
    assert shown == {"model": "missing", "enforce_eager": True, "max_num_seqs": 8}


def test_a_host_or_a_key_silences_the_open_door_warning(ortloom):
    for extra in (["--host", "0.0.0.0"], ["--api-key", KEY], ["--uds", "/tmp/x"]):
        assert "without an API key" not in ortloom("serve", "missing", *extra).stderr
    assert "without an API key" not in ortloom("serve", "missing", env={"VLLM_API_KEY": KEY}).stderr


def test_a_quiet_level_prints_errors_only(ortloom):
    done = ortloom("serve", "missing", "--log-level", "ERROR", "--host", "127.0.0.1")
    assert len(done.stderr.splitlines()) == 1


def test_keys_are_not_shown(ortloom, tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(f"model: missing\napi-key: [{KEY}]\n")
    for arguments, env in (
        (["missing", "--api-key", KEY, "other" + KEY], {}),
        (["missing", f"--api-key={KEY}", "-v"], {}),
        (["--config", file], {}),
        (["missing"], {"VLLM_API_KEY": KEY}),
    ):
        done = ortloom("serve", *arguments, env=env)
        assert done.returncode == 1
        assert KEY not in done.stderr + done.stdout


def test_keys_leave_the_process_list():
    code = (
        "import sys, pathlib; from ortloom.process_title import blank_arguments;"
        "print(blank_arguments(sys.argv[2:4]));"
        "print(pathlib.Path('/proc/self/cmdline').read_bytes().decode().split(chr(0))[3:])"
    )
    command = [sys.executable, "-c", code, "--api-key", KEY, "b2", f"--api-key={KEY}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    flag, arguments = done.stdout.splitlines()
    assert flag == "True"
    stars = "*" * len(KEY)
    assert arguments == str(["--api-key", stars, "**", f"--api-key={stars}", ""])


def test_export_options_do_not_change_a_finished_bundle(ortloom, tmp_path):
    manifest = {
        "quantization": {"method": "rtn", "bits": 8},
        "dtypes": {"activations": "float32", "weights": "float32"},
    }
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    done = ortloom("serve", tmp_path, "--quant", "int4")
    assert done.returncode == 2
    assert "is int8 and cannot be changed; export it again with --quant int4" in done.stderr


def test_help_forms(ortloom):
    overview = ortloom("serve", "--help")
    assert overview.returncode == 0
    assert "Config Groups" in overview.stdout
    assert "--help=all" in overview.stdout
    assert ortloom("serve", "-h").stdout == overview.stdout
    assert ortloom("serve", "--help=listgroup").stdout == overview.stdout

    everything = ortloom("serve", "--help=all").stdout
    assert ortloom("serve", "--help=page").stdout == everything
    for name in ("--max-model-len", "--tensor-parallel-size", "--provider", "JSON document"):
        assert name in everything

    group = ortloom("serve", "--help=cacheconfig").stdout
    assert "--block-size" in group
    assert "--port" not in group

    one = ortloom("serve", "--help=max_num-seqs").stdout
    assert one.startswith("options matching 'max_num-seqs':")
    assert "--max-num-seqs" in one
    assert "--max-model-len" not in one

    many = ortloom("serve", "model", "--help=max").stdout
    names = [line.split()[0] for line in many.splitlines() if line.startswith("  --")]
    assert len(names) > 10
    assert names == sorted(names)

    none = ortloom("serve", "--help=zzz")
    assert none.returncode == 0
    assert "no group or option matches 'zzz'" in none.stdout


def test_top_level(ortloom):
    assert "usage: ortloom" in ortloom().stdout
    assert ortloom().returncode == 0
    from ortloom import __version__

    for flag in ("-v", "--version"):
        assert ortloom(flag).stdout == f"{__version__}\n"
    done = ortloom("serv")
    assert done.returncode == 2
    assert "did you mean serve?" in done.stderr
    done = ortloom("preload")
    assert done.returncode == 2
    assert "not in this build yet" in done.stderr
    assert "omni" in ortloom("--omni").stderr
    assert ortloom("serve", "--omni").returncode == 2


def test_the_way_to_the_supervisor_is_light():
    code = (
        "import sys; import ortloom.commands.serve as serve;"
        "from ortloom.environment import read_environment;"
        "from ortloom.flags import flag_table;"
        "serve.make_plan(['m', '--max-num-seqs', '3'], read_environment({}), flag_table());"
        "heavy = ('numpy', 'onnxruntime', 'sanic', 'torch', 'yaml', 'asyncio', 'ctypes', 'zmq');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_first_processes_start_before_anything_heavy_is_loaded():
    code = (
        "import sys; import ortloom.cli, ortloom.commands.serve_ahead;"
        "heavy = ('numpy', 'msgspec', 'sanic', 'asyncio', 'ctypes', 'zmq', 'json');"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("arguments", "code"), [(["--nonsense"], 2), (["no-such-model"], 1), (["--port", "x"], 2)]
)
def test_a_start_that_fails_leaves_no_process_and_no_folder(ortloom, tmp_path, arguments, code):
    folder = tmp_path / "tmp"
    folder.mkdir()
    assert ortloom("serve", *arguments, env={"TMPDIR": str(folder)}).returncode == code
    assert list(folder.iterdir()) == []
    marked = f"TMPDIR={folder}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            assert marked not in entry.read_bytes().split(b"\0")


def test_help_starts_nothing(ortloom, tmp_path):
    done = ortloom("serve", "--help", env={"TMPDIR": str(tmp_path / "absent")})
    assert done.returncode == 0


def test_a_closed_pipe_is_no_crash(ortloom):
    command = f"{sys.executable} -m ortloom serve --help=all | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stdout == "usage: ortloom serve [model] [options]\n"
    assert done.stderr == ""
