"""`ortloom export` as a user types it: exit codes, what is on stdout, what is left on disk."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest


def fails(done, code, *texts):
    assert done.returncode == code, done.stderr
    line = done.stderr.splitlines()[-1]
    assert "error: " in line
    for text in texts:
        assert text in line
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.fixture(scope="module")
def made(tiny, tmp_path_factory):
    """One real export: its source, bundle, and the finished process."""
    folder = tmp_path_factory.mktemp("export")
    source = tiny.write(folder / "model")
    out = folder / "bundle"
    command = [sys.executable, "-m", "ortloom", "export", str(source), "-o", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return source, out, done


def test_a_bundle_is_made_and_its_path_printed(made, ortloom):
    _, out, done = made
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{out}\n"
    assert "weights" in done.stderr
    assert "Warning" not in done.stderr
    assert [path.name for path in out.parent.iterdir() if ".tmp-" in path.name] == []
    verified = ortloom("verify", out)
    assert verified.returncode == 0
    assert "intact" in verified.stdout


def test_an_existing_output_is_kept(made, ortloom):
    source, out, _ = made
    before = (out / "manifest.json").stat().st_mtime_ns
    fails(ortloom("export", source, "-o", out), 7, "exists", "--force")
    assert (out / "manifest.json").stat().st_mtime_ns == before


def test_check_of_an_existing_output(made, ortloom, tmp_path):
    import shutil

    source, out, _ = made
    same = ortloom("export", source, "-o", out, "--check")
    assert (same.returncode, same.stdout) == (0, f"{out}\n")
    fails(ortloom("export", source, "-o", out, "--check", "--quant", "int8"), 8, "stale", "int8")

    other = shutil.copytree(source, tmp_path / "model")
    (other / "config.json").write_text((other / "config.json").read_text() + "\n")
    fails(ortloom("export", other, "-o", out, "--check"), 8, "stale", "config.json")

    copy = shutil.copytree(out, tmp_path / "bundle")
    with (copy / "weights" / "model.bin").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last[0] ^ 1]))
    fails(ortloom("export", source, "-o", copy, "--check"), 8, "not intact", "model.bin")
    fails(ortloom("verify", copy), 1, "model.bin")


def test_the_output_layer_can_have_four_bits(made, ortloom, tmp_path):
    source, _, _ = made
    out, command = tmp_path / "out", ("export", source, "-o", tmp_path / "out", "--quant", "int4")
    four = (*command, "--lm-head-quant", "int4")
    assert ortloom(*four).returncode == 0
    quantization = json.loads((out / "manifest.json").read_bytes())["quantization"]
    assert quantization["lm_head_bits"] == 4
    assert ortloom(*four, "--check").returncode == 0
    fails(ortloom(*command, "--check"), 8, "stale", "output layer is int4")
    assert ortloom(*command, "--force").returncode == 0
    quantization = json.loads((out / "manifest.json").read_bytes())["quantization"]
    assert quantization["lm_head_bits"] == 8
    fails(ortloom(*four, "--check"), 8, "stale", "output layer is int8")


def test_dry_run_plans_without_writing(checkpoint, ortloom, tmp_path):
    done = ortloom("export", checkpoint, "-o", tmp_path / "out", "--dry-run")
    assert done.returncode == 0
    assert "LlamaForCausalLM, 2 layers" in done.stdout
    assert "weights cpu" in done.stdout
    plan = ortloom("export", checkpoint, "--dry-run", "--json", "--targets", "plain")
    assert list(json.loads(plan.stdout)["weight_bytes"]) == ["plain"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "-o/--output"),
        (["-o", "x", "--targets", "gpu"], "'gpu' is unknown"),
        (["-o", "x", "--targets", "cpu,cuda"], "not in this build yet"),
        (["-o", "x", "--targets", ","], "at least one"),
        (["-o", "x", "--quant", "int3"], "invalid choice"),
        (["-o", "x", "--dtype", "fp8"], "invalid choice"),
        (["-o", "x", "--quant", "int8", "--lm-head-quant", "int4"], "goes with --quant int4 only"),
        (["-o", "x", "--lm-head-quant", "int8"], "goes with --quant int4 only"),
        (["-o", "x", "--nonsense"], "unrecognized arguments: --nonsense"),
    ],
)
def test_usage_errors(checkpoint, ortloom, arguments, text):
    fails(ortloom("export", checkpoint, *arguments), 2, text)


def test_missing_shard(checkpoint, tiny, ortloom, tmp_path):
    tiny.shard(checkpoint)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    done = ortloom("export", checkpoint, "-o", tmp_path / "out")
    fails(done, 3, "model-00002-of-00002.safetensors")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("target", ["../secret.safetensors", "/secret.safetensors", "a/../../b"])
def test_index_that_leaves_the_folder(checkpoint, tiny, ortloom, tmp_path, target):
    weight_map = tiny.shard(checkpoint)
    outside = tmp_path / "secret.safetensors"
    os.mkfifo(outside)  # opening it would hang
    first = sorted(weight_map)[0]
    path = target if target[0] != "/" else str(outside)
    tiny.write_index(checkpoint, weight_map | {first: path})
    fails(ortloom("export", checkpoint, "-o", tmp_path / "out", timeout=60), 3)
    assert not (tmp_path / "out").exists()


def test_corrupt_header(checkpoint, ortloom, tmp_path):
    file = checkpoint / "model.safetensors"
    file.write_bytes(b"\xff" * 8 + file.read_bytes()[8:])
    fails(ortloom("export", checkpoint, "-o", tmp_path / "out"), 3, "model.safetensors")


def test_truncated_file(checkpoint, ortloom, tmp_path):
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    fails(ortloom("export", checkpoint, "-o", tmp_path / "out"), 3, "model.safetensors")


def test_sources_that_are_none(ortloom, tmp_path):
    fails(ortloom("export", tmp_path / "none", "-o", tmp_path / "out"), 3, "does not exist")
    fails(ortloom("export", "some/model", "-o", tmp_path / "out"), 3, "hub")
    fails(ortloom("export", tmp_path, "-o", tmp_path / "out"), 3)
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF")
    fails(ortloom("export", file, "-o", tmp_path / "out"), 3, "x.gguf")


def test_unsupported_architecture(checkpoint, ortloom, tmp_path):
    config = json.loads((checkpoint / "config.json").read_text())
    config |= {"architectures": ["FancyForCausalLM"], "model_type": "fancy"}
    (checkpoint / "config.json").write_text(json.dumps(config))
    fails(ortloom("export", checkpoint, "-o", tmp_path / "out"), 4, "FancyForCausalLM")


def test_without_the_extra_the_command_is_named(checkpoint, ortloom, tmp_path):
    # an import hook that hides torch, as in a serving install
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
    )
    env = {"PYTHONPATH": str(hook)}
    done = ortloom("export", checkpoint, "-o", tmp_path / "out", env=env)
    fails(done, 1, "needs torch", "pip install 'ortloom[export]'")
    done = ortloom("serve", checkpoint, env=env)
    fails(done, 1, "needs torch", "pip install 'ortloom[export]'")


def test_json_events_and_interrupt(checkpoint, tmp_path):
    out = tmp_path / "out"
    command = [sys.executable, "-m", "ortloom", "export", str(checkpoint), "-o", str(out)]
    child = subprocess.Popen(
        [*command, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    for line in child.stderr:
        event = json.loads(line)
        if event["event"] == "phase" and list(tmp_path.glob("out.tmp-*")):
            break
    child.send_signal(signal.SIGINT)
    stdout, _ = child.communicate(timeout=120)
    assert child.returncode == 130
    assert stdout == ""
    assert not out.exists()
    assert list(tmp_path.glob("out.tmp-*")) == []


def test_serving_a_checkpoint_exports_it_once(checkpoint, tmp_path):
    """Two servers at the same time on one cache; then a third that finds the bundle."""
    cache = tmp_path / "cache"
    env = {**os.environ, "HOME": str(tmp_path)}
    servers = []

    def start(name):
        log = (tmp_path / f"{name}.log").open("w+")
        command = [sys.executable, "-m", "ortloom", "serve", str(checkpoint), "--quant", "int8"]
        command += ["--bundle-cache", str(cache), "--uds", str(tmp_path / name), "--num-blocks"]
        child = subprocess.Popen([*command, "16"], stdout=log, stderr=log, text=True, env=env)
        servers.append((child, log))
        return name

    def ask(name):
        import http.client
        import socket

        class Local(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.connect(str(tmp_path / name))

        connection = Local("localhost", timeout=10)
        try:
            connection.request("GET", "/v1/models")
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def wait(name):
        end = time.monotonic() + 200
        while True:
            try:
                return ask(name)
            except (OSError, ValueError):
                child = servers[-1][0]
                assert child.poll() is None, (tmp_path / f"{name}.log").read_text()
                assert time.monotonic() < end, (tmp_path / f"{name}.log").read_text()
                time.sleep(0.05)

    try:
        start("a")
        start("b")
        for name in ("a", "b"):
            assert wait(name)["data"][0]["id"] == str(checkpoint)
        logs = [(tmp_path / f"{name}.log").read_text() for name in ("a", "b")]
        assert sum("(once) to" in log for log in logs) == 1
        (bundle,) = (cache / "bundles").iterdir()
        assert json.loads((bundle / "manifest.json").read_text())["quantization"]["bits"] == 8
        start("c")
        wait("c")
        assert "using the bundle exported before" in (tmp_path / "c.log").read_text()
    finally:
        for child, _ in servers:
            child.terminate()
        for child, log in servers:
            assert child.wait(timeout=60) == 0
            log.close()
