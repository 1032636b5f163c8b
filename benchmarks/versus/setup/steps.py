"""Steps that the set-ups share: venvs, downloads, commands with a log."""

import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.versus.engines import PEERS, ROOT

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


def checkpoint(gguf: Path) -> Path:
    """The demo model as a plain fp32 Hugging Face folder, for peers that read only those."""
    folder = PEERS / "hf-fp32"
    if not (folder / "config.json").exists():
        say(f"writing {folder} (0.5 GB) from {gguf.name}")
        script = ROOT / "benchmarks" / "peers" / "hf_checkpoint.py"
        command([sys.executable, script, gguf, folder], PEERS / "hf-fp32.log")
    return folder
