"""The op tests on a build of the library with AddressSanitizer and UndefinedBehaviorSanitizer.

`make sanitized` builds it into build/sanitize; a fault ends the process that runs the tests.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
CXX = os.environ.get("CXX", "g++")
FLAGS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
TESTS = (
    "test_decoder_layer.py",
    "test_experts.py",
    "test_op_errors.py",
    "test_op_invariance.py",
    "test_op_numerics.py",
    "test_op_pools.py",
    "test_op_pools_invariance.py",
    "test_packed_linear.py",
    "test_packed_qkv.py",
    "test_packed_refusals.py",
    "test_sampling.py",
)

pytestmark = pytest.mark.full


def preloaded():
    """The sanitizer's runtime, and the C++ library so that it finds the exceptions' functions."""
    found = []
    for name in ("libasan.so", "libstdc++.so.6"):
        command = [CXX, f"-print-file-name={name}"]
        found.append(subprocess.run(command, capture_output=True, text=True, check=True))
    return " ".join(os.path.realpath(one.stdout.strip()) for one in found)


@pytest.fixture(scope="module")
def environment():
    return {
        **os.environ,
        "LD_PRELOAD": preloaded(),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=0:exitcode=99",
        "UBSAN_OPTIONS": "print_stacktrace=1:exitcode=99",
        "PYTHONMALLOC": "malloc",  # so that buffers of Python objects have red zones too
    }


@pytest.fixture(scope="module")
def library():
    command = ["make", "--no-print-directory", "sanitized", f"VENV={sys.prefix}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return ROOT / "build" / "sanitize" / "kernels" / "csrc" / "libortloom_ops.so"


@pytest.mark.parametrize(
    ("call", "message"),
    [("ReadPastTheEnd", "heap-buffer-overflow"), ("OverflowInt", "signed integer overflow")],
)
def test_a_seeded_fault_ends_the_process(tmp_path, environment, call, message):
    built = tmp_path / "faults.so"
    source = HERE / "out_of_bounds.cc"
    subprocess.run(
        [CXX, "-shared", "-fPIC", "-g1", *FLAGS, str(source), "-o", str(built)], check=True
    )
    script = f"import ctypes; ctypes.CDLL('{built}').{call}(8); print('not stopped')"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "not stopped" not in done.stdout
    assert message in done.stderr


def test_the_op_tests_run_clean(library, environment):
    """Every op in every tier, bad input, schedules and the sampler, but what is `unsanitized`."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not full and not unsanitized",
        *(str(HERE / name) for name in TESTS),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**environment, "ORTLOOM_OPS_LIBRARY": str(library)},
        capture_output=True,
        text=True,
        check=False,
    )
    text = done.stdout[-3000:] + done.stderr[-6000:]
    assert "ERROR: AddressSanitizer" not in done.stderr, text
    assert "runtime error:" not in done.stderr, text
    assert done.returncode == 0, text
    assert " passed" in done.stdout
