"""Build the arm64 Linux wheel on any machine: `python tools/wheel_aarch64.py -o DIR`.

The op library is cross-compiled by zig (PyPI package `ziglang`, the one thing needed besides the
build tools); the rest of the package is Python. The wheel serves every supported Python, since the
library does not link to it, and glibc from GLIBC on.
"""

import argparse
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}_aarch64"


def zig_path() -> Path:
    """The zig binary of the installed `ziglang` package.

    Raises:
        SystemExit: it is not installed.
    """
    spec = find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise SystemExit("zig is missing: python -m pip install ziglang")
    return Path(spec.origin).parent / "zig"


def build(out: Path, zig: Path, build_dir: Path | None = None, isolated: bool = False) -> Path:
    """Build the wheel into `out` and return its path.

    Args:
        out: folder, made if it is not there.
        zig: the compiler.
        build_dir: where CMake works; None = below build/.
        isolated: let pip fetch the build tools instead of using those installed.

    Raises:
        SystemExit: the build failed.
    """
    settings = {
        "cmake.define.CMAKE_TOOLCHAIN_FILE": ROOT / "tools" / "aarch64-linux.cmake",
        "cmake.define.ORTLOOM_ZIG": zig,
        "cmake.define.ORTLOOM_GLIBC": GLIBC,
        "install.strip": "false",  # the linker does it: this machine's strip knows no arm64
        "wheel.py-api": "py3",
        "build-dir": build_dir if build_dir is not None else ROOT / "build" / "aarch64",
    }
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(out)]
    if not isolated:
        command.append("--no-build-isolation")
    for name, value in settings.items():
        command += ["-C", f"{name}={value}"]
    # What sysconfig then gives as the platform, and so the tag.
    environment = {**os.environ, "_PYTHON_HOST_PLATFORM": PLATFORM}
    done = subprocess.run([*command, str(ROOT)], env=environment, check=False)
    wheels = sorted(out.glob(f"ortloom-*-{PLATFORM}.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        raise SystemExit(f"no wheel for {PLATFORM} was built in {out}")
    return wheels[0]


def main() -> None:
    """Build and print the wheel's path."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist")
    print(build(parser.parse_args().out, zig_path()))


if __name__ == "__main__":
    main()
