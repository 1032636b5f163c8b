"""Steps that the set-ups share: venvs, downloads, commands with a log."""

import contextlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.versus.engines import ROOT

NICE = ("nice", "-n", "19")


class SetupFailed(RuntimeError):
    """A peer could not be set up; the text has the command and the end of its log."""


def say(text: str) -> None:
    """A line of progress on standard error."""
    print(f"versus: {text}", file=sys.stderr, flush=True)


def command(
    parts: Sequence[object],
    log: Path,
    cwd: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Runs a command at the lowest priority, its output appended to a log.

    Raises:
        SetupFailed: it did not end with 0.
    """
    words = [str(part) for part in (*NICE, *parts)]
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        done = subprocess.run(
            words, stdout=file, stderr=file, cwd=cwd, env=environment, check=False
        )
    if done.returncode:
        tail = log.read_text(errors="replace").splitlines()[-15:]
        raise SetupFailed("\n  ".join([f"{' '.join(words)}: exit code {done.returncode}", *tail]))


def make_venv(home: Path, packages: Sequence[str], size: str, remove: Sequence[str] = ()) -> Path:
    """The Python of a venv with exactly these packages on top, made where it is missing.

    A stamp with the pins tells whether the venv is complete.
    """
    python = home / "venv" / "bin" / "python"
    stamp = home / "venv" / "pins.txt"
    pins = "\n".join([*packages, *(f"without {name}" for name in remove)])
    if stamp.exists() and stamp.read_text() == pins:
        return python
    say(f"installing {', '.join(packages)} into {home / 'venv'} ({size})")
    if not python.exists():
        venv.create(home / "venv", with_pip=True)
    log = home / "install.log"
    pip = [python, "-m", "pip", "--disable-pip-version-check"]
    command([*pip, "install", "--quiet", *packages], log)
    if remove:
        command([*pip, "uninstall", "--yes", "--quiet", *remove], log)
    stamp.write_text(pins)
    return python


@contextlib.contextmanager
def made(target: Path) -> Iterator[Path]:
    """A free path beside `target` to make a file or folder at, renamed to it when all went well.

    So what lies at `target` is complete. An unfinished one of an earlier attempt is removed, and so
    is what lies at `target` already.
    """
    partial = target.with_name(target.name + ".partial")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove(partial)
    yield partial
    remove(target)
    partial.rename(target)


def remove(path: Path) -> None:
    """Deletes a file or a whole folder; nothing there is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
