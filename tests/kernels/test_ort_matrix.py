"""The op's tests on other ONNX Runtime releases: the floor, and the oldest the ABI header serves.

Each release has a venv of its own under build/, made on first use and kept; the package is
installed there as a wheel, so these runs also prove that one binary serves all releases.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLOOR = "1.23.0"  # the oldest release that loads opset 23 (with IR version 11)
ABI_ONLY = "1.19.2"  # opset 21, fallback for the shape query that came with 1.24
SELECTED = {
    FLOOR: "not sampling and not packing",  # they run no session
    # Its Python API cannot make a bfloat16 value, so those inputs have no way in.
    ABI_ONLY: "not sampling and not packing and not bf16 and not half_precision",
}
PACKAGES = ("numpy", "onnx>=1.23,<1.24", "pytest>=9", "hypothesis>=6.150")

pytestmark = pytest.mark.full


def run(*command, **options):
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False, **options
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment_for(version):
    folder = ROOT / "build" / f"ort-{version}"
    python = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        run(sys.executable, "-m", "venv", "--clear", folder)
        run(python, "-m", "pip", "install", "-q", f"onnxruntime=={version}", *PACKAGES)
        ready.touch()
    return python


@pytest.mark.parametrize("version", [FLOOR, ABI_ONLY])
def test_the_op_and_its_body_on(version, native_wheel):
    python = environment_for(version)
    run(python, "-m", "pip", "install", "-q", "--no-deps", "--force-reinstall", native_wheel)
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("ORTLOOM_", "PYTHON"))}
    out = run(
        python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not full",
        f"--confcutdir={HERE}", "-k", SELECTED[version], HERE, cwd=ROOT, env=clean, timeout=900,
    )  # fmt: skip
    last = out.strip().splitlines()[-1]
    assert "passed" in last
    assert "skipped" not in last
    used = run(python, "-c", "import onnxruntime; print(onnxruntime.__version__)", env=clean)
    assert used.strip() == version
