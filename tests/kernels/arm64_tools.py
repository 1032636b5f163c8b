"""What it takes to build for arm64 Linux and to run that here, fetched without root rights.

zig comes from PyPI. The emulator is that of PATH, or else Debian's static one, unpacked from its
package below build/ and never installed; the C library that arm64 programs load comes the same way.
All is kept below build/ for the next run.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "build" / "arm64"
CONSTRAINTS = ROOT / "constraints.txt"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def zig():
    """The zig binary."""
    (pinned,) = (x for x in CONSTRAINTS.read_text().split() if x.startswith("ziglang=="))
    folder = TOOLS / pinned.replace("ziglang==", "zig-")
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        pip = (sys.executable, "-m", "pip", "install", "-q", "--no-deps")
        run(*pip, "--target", folder, pinned)
        (folder / "ready").touch()
    return folder / "ziglang" / "zig"


def download(package, folder):
    """Fetch a Debian package; where apt has no lists, or old ones, after lists of our own."""
    # apt gives up its rights while it downloads, where it has any, and the folder is not its.
    apt = ["apt-get", "-o", "APT::Sandbox::User=root"]
    first = subprocess.run(
        [*apt, "download", package], cwd=folder, capture_output=True, check=False
    )
    if first.returncode == 0:
        return
    state = TOOLS / "apt"
    for kind in ("lists", "cache"):
        (state / kind / "partial").mkdir(parents=True, exist_ok=True)
    apt += ["-o", f"Dir::State::Lists={state / 'lists'}", "-o", f"Dir::Cache={state / 'cache'}"]
    run(*apt, "update", cwd=folder)
    run(*apt, "download", package, cwd=folder)


def unpacked(package, member):
    """A file or folder of a Debian package, which apt downloads and dpkg unpacks."""
    folder = TOOLS / package
    if not (folder / member).exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        download(package, folder)
        (archive,) = folder.glob("*.deb")
        run("dpkg", "-x", archive, folder)
        archive.unlink()
    return folder / member


def emulator():
    """The command that runs an arm64 program, without the choice of a CPU model."""
    found = next(filter(None, map(shutil.which, EMULATORS)), None)
    program = found or unpacked("qemu-user-static", f"usr/bin/{EMULATORS[0]}")
    return (program, "-L", unpacked("libc6-arm64-cross", "usr/aarch64-linux-gnu"))
