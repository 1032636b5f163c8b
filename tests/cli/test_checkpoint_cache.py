"""The bundle cache, with a stand-in for the export command so that its timing can be steered."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortloom.checkpoint_cache import CheckpointCache
from ortloom.errors import ConfigError, ExportError, SourceInvalid
from ortloom.models.source_key import source_key

# Takes SOURCE OUTPUT, notes each run in SOURCE/../runs, writes OUTPUT by rename like the exporter.
EXPORTER = """
import os, sys, time
source, output = sys.argv[1:3]
with open(os.path.join(source, "..", "runs"), "a") as runs:
    runs.write("run\\n")
temporary = f"{output}.tmp-{os.getpid()}"
os.makedirs(temporary)
while os.path.exists(os.path.join(source, "..", "hold")):
    time.sleep(0.01)
if os.path.exists(os.path.join(source, "..", "fail")):
    sys.exit(5)
open(os.path.join(temporary, "manifest.json"), "w").write("{}")
os.rename(temporary, output)
"""

# One `serve`: asks the cache for a bundle and prints it.
ASKER = """
import sys
from pathlib import Path
from ortloom.checkpoint_cache import CheckpointCache
root, source, exporter = sys.argv[1:4]
cache = CheckpointCache(Path(root), lambda s, o, _: [sys.executable, exporter, str(s), str(o)])
report = lambda line: print(line, file=sys.stderr, flush=True)
print(cache.bundle(Path(source), {"dtype": "fp32"}, report), flush=True)
"""


class Place:
    def __init__(self, folder):
        self.folder = folder
        self.source = folder / "model"
        self.source.mkdir()
        (self.source / "config.json").write_text("{}")
        (self.source / "model.safetensors").write_bytes(b"weights")
        self.root = folder / "cache"
        self.exporter = folder / "exporter.py"
        self.exporter.write_text(EXPORTER)
        self.asker = folder / "asker.py"
        self.asker.write_text(ASKER)
        self.cache = CheckpointCache(self.root, self.command)
        self.lines = []
        self.children = []

    def command(self, source, output, options):
        return [sys.executable, str(self.exporter), str(source), str(output)]

    def ask(self, **options):
        return self.cache.bundle(self.source, {"dtype": "fp32"} | options, self.lines.append)

    def spawn(self):
        command = [sys.executable, str(self.asker), str(self.root), str(self.source)]
        command.append(str(self.exporter))
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.children.append(child)
        return child

    @property
    def runs(self):
        file = self.folder / "runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def wait_for(self, condition, seconds=30):
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, "condition not met in time"
            time.sleep(0.01)


@pytest.fixture
def place(tmp_path):
    place = Place(tmp_path)
    yield place
    (tmp_path / "hold").unlink(missing_ok=True)
    for child in place.children:
        child.wait(timeout=60)
        child.stdout.close()
        child.stderr.close()


def test_exports_once_and_reuses(place):
    first = place.ask()
    assert (first / "manifest.json").is_file()
    assert place.ask() == first
    assert place.runs == 1
    assert place.lines[-1].startswith("using the bundle exported before")
    assert list(place.cache.entries()) == [first]


def test_bars_are_shown_unless_they_are_switched_off(place):
    """--no-use-tqdm-on-load (bars)"""
    given = []

    def command(source, output, options):
        given.append(dict(options))
        return place.command(source, output, options)

    cache = CheckpointCache(place.root, command)
    for quant, bars in (("int4", True), ("int8", False)):
        cache.bundle(place.source, {"quant": quant}, place.lines.append, bars=bars)
    assert ["no-progress-bar" in options for options in given] == [False, True]


def test_options_and_contents_are_part_of_the_key(place):
    first = place.ask()
    assert place.ask(quant="int8") != first
    (place.source / "model.safetensors").write_bytes(b"WEIGHTS")
    assert place.ask() not in (first,)
    assert place.runs == 3


def test_a_rewritten_file_with_its_old_mtime_is_noticed(place):
    first = place.ask()
    file = place.source / "model.safetensors"
    status = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert place.ask() != first


def test_two_processes_export_once(place):
    (place.folder / "hold").touch()
    one = place.spawn()
    place.wait_for(lambda: place.runs == 1)
    two = place.spawn()
    waiting = two.stderr.readline()
    assert "waiting for another process" in waiting
    (place.folder / "hold").unlink()
    out_one, _ = one.communicate(timeout=60)
    out_two, _ = two.communicate(timeout=60)
    assert (one.returncode, two.returncode) == (0, 0)
    assert out_one == out_two != ""
    assert place.runs == 1


def test_an_interrupted_export_leaves_nothing_finished(place):
    (place.folder / "hold").touch()
    asker = place.spawn()
    place.wait_for(lambda: place.runs == 1)
    place.wait_for(lambda: list((place.root / "bundles").glob("*.tmp-*")))
    asker.send_signal(signal.SIGTERM)
    asker.communicate(timeout=60)
    assert asker.returncode != 0
    assert list(place.cache.entries()) == []
    (place.folder / "hold").unlink()
    bundle = place.ask()
    assert place.runs == 2
    assert list((place.root / "bundles").iterdir()) == [bundle]  # the leftover is gone


def test_a_killed_server_does_not_free_the_lock_of_its_export(place):
    (place.folder / "hold").touch()
    first = place.spawn()
    place.wait_for(lambda: place.runs == 1)
    first.kill()
    first.wait(timeout=60)  # its export lives on and holds the pipes
    assert list(place.cache.leftovers()) == []  # still being written
    second = place.spawn()
    assert "waiting for another process" in second.stderr.readline()
    (place.folder / "hold").unlink()
    out, _ = second.communicate(timeout=60)
    assert Path(out.strip()).is_dir()
    assert place.runs == 1


def test_a_failed_export_is_reported_and_leaves_nothing(place):
    (place.folder / "fail").touch()
    with pytest.raises(ExportError, match="exit code 5"):
        place.ask()
    assert list(place.cache.entries()) == []
    assert len(list(place.cache.leftovers())) == 1
    (place.folder / "fail").unlink()
    assert place.ask().is_dir()


def freeze(root):
    """Make every write below the folder fail, for the superuser (no modes) as well."""
    (root / "hashes.json").unlink(missing_ok=True)
    (root / "hashes.json").mkdir()
    (root / "hashes.json" / "x").touch()
    shutil.rmtree(root / "locks", ignore_errors=True)
    (root / "locks").touch()
    for path in [root, *root.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)


def tree(root):
    return {path: path.stat().st_mtime_ns for path in root.rglob("*")}


@pytest.fixture
def frozen(place):
    yield lambda: freeze(place.root)
    for path in [place.root, *place.root.rglob("*")]:
        path.chmod(0o755)


def test_a_read_only_cache_is_used_as_it_is(place, frozen):
    bundle = place.ask()
    frozen()
    before = tree(place.root)
    assert place.ask() == bundle
    assert tree(place.root) == before
    assert place.runs == 1


def test_a_read_only_cache_without_the_bundle_says_so(place, frozen):
    (place.root / "bundles").mkdir(parents=True)
    frozen()
    with pytest.raises(ConfigError, match=r"cannot be written to .*--bundle-cache"):
        place.ask()
    assert place.runs == 0


def test_a_path_that_cannot_be_a_cache(place):
    place.root.write_text("a file")
    with pytest.raises(ConfigError, match="cannot be written to"):
        place.ask()


def test_links_out_of_the_checkpoint_are_not_opened(place):
    pipe = place.folder / "pipe"
    os.mkfifo(pipe)  # opening it for reading would hang
    (place.source / "x.safetensors").symlink_to(pipe)
    with pytest.raises(SourceInvalid, match="outside the checkpoint"):
        source_key(place.source, {}, "1")
    (place.source / "x.safetensors").unlink()
    os.mkfifo(place.source / "x.safetensors")
    with pytest.raises(SourceInvalid, match="not a regular file"):
        source_key(place.source, {}, "1")


def test_hub_cache_layout_is_read(tmp_path):
    blobs = tmp_path / "models--a--b" / "blobs"
    snapshot = tmp_path / "models--a--b" / "snapshots" / "main"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    assert len(source_key(snapshot, {}, "1")) == 64


def test_list_prune_and_clear(place, ortloom):
    bundle = place.ask()
    leftover = bundle.with_name("0" * 64 + ".tmp-1")
    leftover.mkdir()

    def cache(*arguments):
        return ortloom("cache", "--bundle-cache", place.root, *arguments)

    listed = cache("list")
    assert listed.stdout.startswith(bundle.name[:12])
    assert "1 unfinished" in listed.stderr
    assert cache("prune").returncode == 0
    assert (bundle.exists(), leftover.exists()) == (True, False)
    assert cache("prune", "--older-than", "1").returncode == 0
    assert bundle.exists()
    assert "removed 1" in cache("clear").stdout
    assert not bundle.exists()
    assert cache("list").stdout == ""
