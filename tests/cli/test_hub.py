"""Models and tokenizers from a hub: a stand-in on loopback, the real client library."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ortloom.checkpoint_cache import CheckpointCache
from ortloom.commands.model_files import with_bundle
from ortloom.commands.serve import make_plan
from ortloom.environment import read_environment
from ortloom.errors import ManifestError
from ortloom.flags import flag_table
from ortloom.hub import HubAccess, fetch

MAIN, OLD = "a" * 40, "b" * 40
FILES = {
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "model.safetensors": b"weights",
    "README.md": b"text",
    "original/consolidated.json": b"{}",
}


@pytest.fixture
def hub(load, monkeypatch, tmp_path):
    server = load("hub_server").HubServer(dict(FILES), {"main": MAIN, "v1": OLD})
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with server:
        yield server


@pytest.fixture
def exported(monkeypatch):
    """What the bundle cache is asked for; nothing is exported."""
    asked = []

    def bundle(cache, source, options, report, *, paths, bars):
        asked.append((source, options, paths, bars))
        return Path("/bundle")

    monkeypatch.setattr(CheckpointCache, "bundle", bundle)
    return asked


def start(model, *tokens):
    plan = make_plan([str(model), *map(str, tokens)], read_environment({}), flag_table())[1]
    return with_bundle(plan)


def names(folder):
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def test_a_model_is_fetched_and_exported_under_its_id_and_commit(hub, exported, tmp_path):
    config = start("owner/model", "--download-dir", tmp_path)
    ((source, options, _, _),) = exported
    assert config.model.bundle == "/bundle"
    assert config.model.served_model_names == ("owner/model",)
    assert options["hub-id"] == "owner/model"
    assert options["revision"] == MAIN
    assert names(source) == ["config.json", "model.safetensors", "tokenizer.json"]
    assert source.is_relative_to(tmp_path)
    before = len(hub.requests)
    start("owner/model", "--download-dir", tmp_path)
    again = [
        path for method, path in hub.requests[before:] if method == "GET" and "resolve" in path
    ]
    assert again == []


def test_a_revision_and_patterns_choose_the_files(hub, exported, tmp_path):
    hub.files["extra.json"] = b"{}"
    start(
        "owner/model", "--download-dir", tmp_path, "--revision", "v1", "--ignore-patterns", "extra*"
    )
    source, options, _, _ = exported[0]
    assert options["revision"] == OLD
    assert "extra.json" not in names(source)
    assert "original/consolidated.json" in names(source)
    with pytest.raises(ManifestError, match="no such revision"):
        start("owner/model", "--download-dir", tmp_path, "--revision", "v2")


def test_without_weights_none_are_fetched(hub, exported, tmp_path):
    start("owner/model", "--download-dir", tmp_path, "--load-format", "dummy")
    source, options, _, _ = exported[0]
    assert options["load-format"] == "dummy"
    assert "model.safetensors" not in names(source)


def test_a_token_opens_a_private_model(hub, exported, tmp_path):
    hub.token = "secret"
    with pytest.raises(ManifestError, match="no such repository, or the token may not see it"):
        start("owner/model", "--download-dir", tmp_path)
    start("owner/model", "--download-dir", tmp_path, "--hf-token", "secret")
    assert len(exported) == 1


def test_a_tokenizer_of_its_own_comes_from_the_hub_too(hub, exported, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    config = start(
        folder,
        "--tokenizer",
        "owner/model",
        "--tokenizer-revision",
        "v1",
        "--download-dir",
        tmp_path,
    )
    assert config.model.tokenizer.endswith(OLD)
    assert names(Path(config.model.tokenizer)) == ["tokenizer.json"]


def test_the_tokenizer_may_be_of_another_revision_than_the_model(hub, exported, tmp_path):
    config = start(
        "owner/model",
        "--tokenizer-revision",
        "v1",
        "--revision",
        "main",
        "--download-dir",
        tmp_path,
    )
    ((source, _, _, _),) = exported
    assert str(source).endswith(MAIN)
    assert config.model.tokenizer.endswith(OLD)
    assert start("owner/model", "--download-dir", tmp_path).model.tokenizer is None


def test_a_local_path_goes_before_the_hub(hub, exported, tmp_path, monkeypatch):
    (tmp_path / "owner" / "model").mkdir(parents=True)
    (tmp_path / "owner" / "model" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    start("owner/model")
    assert exported[0][0] == Path("owner/model")
    assert hub.requests == []


def test_what_is_cached_needs_no_hub(hub, tmp_path):
    access = HubAccess(cache=str(tmp_path), bundles=tmp_path / "hub")
    lines = []
    first = fetch("owner/model", "v1", access, lines.append)
    hub.server.shutdown()
    hub.server.server_close()
    assert fetch("owner/model", "v1", access, lines.append) == first
    assert lines[0] == "looking for owner/model, revision v1 in the hub and its cache"
    with pytest.raises(ManifestError, match="cannot be fetched"):
        fetch("owner/other", None, access, lines.append)


FETCH = """
import sys
from pathlib import Path
from ortloom.errors import ManifestError
from ortloom.hub import HubAccess, fetch
try:
    fetch(sys.argv[1], None, HubAccess(bundles=Path(sys.argv[2])), print)
except ManifestError as error:
    sys.exit(str(error))
"""


def test_the_variables_of_the_hub_are_its_own(hub, tmp_path):
    """HF_HOME is where files are kept, HF_TOKEN opens a private model, HF_HUB_OFFLINE asks no hub;
    the hub's library reads them when it is loaded."""
    hub.token = "secret"

    def run(model, **variables):
        env = {**os.environ, "HF_HOME": str(tmp_path / "home"), **variables}
        command = [sys.executable, "-c", FETCH, model, str(tmp_path)]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=False)

    assert "token may not see it" in run("owner/model").stderr
    done = run("owner/model", HF_TOKEN="secret")
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "home").rglob("model.safetensors"))
    asked = len(hub.requests)
    assert run("owner/model", HF_HUB_OFFLINE="1").returncode == 0
    assert run("owner/other", HF_HUB_OFFLINE="1").returncode != 0
    assert len(hub.requests) == asked


def test_gguf_files_are_fetched_where_there_is_one_and_nothing_else(hub, tmp_path):
    del hub.files["model.safetensors"]
    hub.files["m-q4.gguf"] = b"GGUF"
    found = fetch(
        "owner/model", None, HubAccess(cache=str(tmp_path / "a"), bundles=tmp_path), print
    )
    assert "m-q4.gguf" in names(found.folder)
    hub.files["m-q8.gguf"] = b"GGUF"
    with pytest.raises(ManifestError, match=r"2 \.gguf files"):
        fetch("owner/model", None, HubAccess(cache=str(tmp_path / "b"), bundles=tmp_path), print)


def test_a_bundle_comes_whole_and_as_plain_files(hub, exported, tmp_path):
    hub.files |= {"manifest.json": b"{}", "graphs/cpu.onnx": b"graph", "weights/model.bin": b"w"}
    cache = ["--download-dir", tmp_path / "a", "--bundle-cache", tmp_path / "b"]
    config = start("owner/model", *cache)
    bundle = Path(config.model.bundle)
    assert bundle == tmp_path / "b" / "hub" / "owner--model" / MAIN
    assert {"graphs/cpu.onnx", "weights/model.bin", "manifest.json"} <= set(names(bundle))
    assert not any(path.is_symlink() for path in bundle.rglob("*"))
    assert exported == []
