"""Bundles made from checkpoints by `ortloom serve`, kept in a cache folder.

Layout of the folder: `bundles/<key>/` holds finished bundles, `locks/<key>` the file that one
exporting process locks, `hashes.json` the sha256 of source files already read. A bundle appears by
one rename at the end of its export, so whatever has a manifest is complete. A cache that cannot be
written to serves the bundles it holds.
"""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO

from ortloom import __version__
from ortloom.errors import ConfigError, ExportError, MissingDependency, SourceInvalid
from ortloom.models.source_key import file_sha256, source_key

EXPORT_PACKAGES = ("torch", "transformers", "onnx", "onnxscript", "onnx_ir", "gguf")
INSTALL_EXPORT = "pip install 'ortloom[export]'"

Report = Callable[[str], None]
Command = Callable[[Path, Path, Mapping[str, str]], list[str]]


def export_command(source: Path, output: Path, options: Mapping[str, str]) -> list[str]:
    """The command line of an export; an option with an empty value has none."""
    command = [sys.executable, "-m", "ortloom", "export", str(source), "-o", str(output)]
    for name in sorted(options):
        value = options[name]
        command.append(f"--{name}={value}" if value else f"--{name}")
    return command


class CheckpointCache:
    """The cache below one folder. Nothing is created before it is needed.

    Args:
        root: the folder.
        command: gives the command that exports a source to an output folder.
    """

    def __init__(self, root: Path, command: Command = export_command) -> None:
        self.root = root
        self._command = command

    def bundle(
        self,
        source: Path,
        options: Mapping[str, str],
        report: Report,
        *,
        paths: Mapping[str, Path] = MappingProxyType({}),
        bars: bool = True,
    ) -> Path:
        """The bundle of a checkpoint, exported first if the cache does not hold it.

        Args:
            source: checkpoint folder or .gguf file.
            options: export options (`dtype`, `quant`, `targets`) that change the bundle.
            report: takes one line of progress text.
            paths: export options that name files or folders, whose contents change the bundle.
            bars: whether the export may show bars on a terminal.

        Raises:
            SourceInvalid: the checkpoint cannot be read.
            MissingDependency: an export is needed and the export extra is not installed.
            ConfigError: an export is needed and the folder cannot be written to.
            ExportError: the export failed; its own message is on stderr.
        """
        named = {name: self._content(path) for name, path in paths.items()}
        key = source_key(source, {**options, **named}, __version__, self._known_hash)
        folder = self.root / "bundles" / key
        if (folder / "manifest.json").is_file():
            report(f"using the bundle exported before: {folder}")
            return folder
        require_export_extra()
        self._make_folders()
        with self._locked(key, report) as lock:
            if (folder / "manifest.json").is_file():
                report(f"using the bundle another process exported: {folder}")
                return folder
            for leftover in folder.parent.glob(f"{key}.tmp-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            report(f"exporting {source} (once) to {folder}")
            given = {**options, **{name: str(path) for name, path in paths.items()}}
            if not bars:
                given["no-progress-bar"] = ""
            _export(self._command(source, folder, given), source, lock)
        if not (folder / "manifest.json").is_file():
            raise ExportError(f"the export of '{source}' ended without a bundle at '{folder}'")
        return folder

    def _content(self, path: Path) -> str:
        """The identity of a file's or a folder's contents."""
        if path.is_dir():
            return source_key(path, {}, __version__, self._known_hash)
        try:
            return self._known_hash(path)
        except OSError as error:
            raise SourceInvalid(f"cannot read '{path}': {error.strerror}") from None

    def entries(self) -> Iterator[Path]:
        """Finished bundles."""
        folder = self.root / "bundles"
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if (path / "manifest.json").is_file():
                    yield path

    def leftovers(self) -> Iterator[Path]:
        """What interrupted exports left behind; never one whose export is still running."""
        folder = self.root / "bundles"
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                if not (path / "manifest.json").is_file() and not self._in_use(path):
                    yield path

    def _in_use(self, path: Path) -> bool:
        lock = self.root / "locks" / path.name.partition(".")[0]
        try:
            with lock.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def _make_folders(self) -> None:
        try:
            for name in ("bundles", "locks"):
                (self.root / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._not_writable(error) from None

    def _not_writable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the bundle cache '{self.root}' does not hold this checkpoint and cannot be written "
            f"to ({error.strerror}); name another folder with --bundle-cache"
        )

    @contextmanager
    def _locked(self, key: str, report: Report) -> Iterator[IO[bytes]]:
        try:
            file = (self.root / "locks" / key).open("ab")
        except OSError as error:
            raise self._not_writable(error) from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                report("waiting for another process that exports the same checkpoint")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield file

    def _known_hash(self, path: Path) -> str:
        """sha256 of a source file, remembered as long as the file is untouched.

        ctime is part of what is compared: unlike mtime no ordinary call sets it back.
        """
        status = path.stat()
        stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
        name = str(path.resolve())
        index = self.root / "hashes.json"
        known = _read_index(index)
        entry = known.get(name)
        if isinstance(entry, list) and entry[:-1] == stamp and isinstance(entry[-1], str):
            return entry[-1]
        digest = file_sha256(path)
        known[name] = [*stamp, digest]
        temporary = index.with_name(f"hashes.json.{os.getpid()}")
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(known, sort_keys=True), encoding="utf-8")
            temporary.replace(index)
        except OSError:  # a cache that cannot be written to remembers nothing
            with suppress(OSError):
                temporary.unlink()
        return digest


def _read_index(path: Path) -> dict[str, object]:
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return tree if isinstance(tree, dict) else {}


def require_export_extra() -> None:
    """Check that the packages of the export extra are there, without importing them.

    Raises:
        MissingDependency: names what is missing and the command that installs it.
    """
    missing = [name for name in EXPORT_PACKAGES if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"exporting a checkpoint needs {', '.join(missing)}: {INSTALL_EXPORT}"
        )


def _export(command: list[str], source: Path, lock: IO[bytes]) -> None:
    """Run the export; the child shares the lock, so it stays taken should this process die."""
    stopped: list[int] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, pass_fds=(lock.fileno(),)
    ) as child:

        def stop(number: int, frame: FrameType | None) -> None:
            stopped.append(number)
            child.send_signal(signal.SIGINT)

        old = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            code = child.wait()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
    if stopped:
        raise KeyboardInterrupt
    if code != 0:
        raise ExportError(f"exporting '{source}' failed (exit code {code}); see the lines above")
