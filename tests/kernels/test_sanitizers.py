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
CSRC = ROOT / "kernels" / "csrc"
TESTS = (
    "kernels/test_decoder_layer.py",
    "kernels/test_experts.py",
    "kernels/test_op_errors.py",
    "kernels/test_op_host.py",  # tiers of SSE2, embeddings, norms alone
    "kernels/test_op_invariance.py",
    "kernels/test_op_numerics.py",
    "kernels/test_op_pools.py",
    "kernels/test_op_pools_invariance.py",
    "kernels/test_packed_linear.py",
    "kernels/test_packed_qkv.py",
    "kernels/test_packed_refusals.py",
    "kernels/test_sampling.py",
    "kernels/test_weight_map.py",
    "runtime/runner/test_sampler_native.py",  # every field of a row
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


SEEDED_OUTPUT = """
import ctypes, sys
import numpy as np
sys.path.insert(0, {here!r})
from op_runners import session_options
import onnxruntime as ort
from onnx import TensorProto, helper
info = helper.make_tensor_value_info
nodes = [helper.make_node("Neg", ["x"], ["y"])]
x, y = (info(name, TensorProto.FLOAT, [None]) for name in "xy")
graph = helper.make_graph(nodes, "one", [x], [y])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
session = ort.InferenceSession(model.SerializeToString(), session_options())
feed = ort.OrtValue.ortvalue_from_numpy(np.ones(1000, np.float32))
(y,) = session.run_with_ort_values(["y"], {{"x": feed}})
ctypes.memset(y.data_ptr() + 4000, 1, 64)
print("not stopped")
"""


def test_a_write_past_a_node_s_output_ends_the_process(environment):
    """An op's output, too, ends at a red zone: it does not come out of an arena."""
    done = subprocess.run(
        [sys.executable, "-c", SEEDED_OUTPUT.format(here=str(HERE))],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert "not stopped" not in done.stdout
    assert "heap-buffer-overflow" in done.stderr


DRIVERS = {
    # On kernels that answer questions about maps, ops never read the list of them.
    "areas": ((HERE / "file_areas_driver.cc",), [[__file__, sys.executable]]),
    "phases": (
        (HERE / "phases_driver.cc", CSRC / "team.cc"),
        [["drawn", "3"], ["failing", "4"], ["several callers", "3"]],
    ),
}


@pytest.mark.parametrize("name", DRIVERS)
def test_the_drivers_run_clean(tmp_path, name):
    sources, runs = DRIVERS[name]
    command = [CXX, "-std=c++17", "-O1", "-g1", "-pthread", *FLAGS, f"-I{CSRC}", *sources]
    program = tmp_path / name
    subprocess.run([*map(str, command), "-o", str(program)], check=True)
    for arguments in runs:
        done = subprocess.run(
            [str(program), *arguments], capture_output=True, text=True, timeout=300, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stderr[-6000:]
        assert done.stdout.count("\n") > 3


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
        *(str(ROOT / "tests" / name) for name in TESTS),
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
