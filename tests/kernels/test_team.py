"""The library's thread team: limits, results that do not depend on it, forks, exits, idling."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest

from ortloom.errors import KernelUnavailable
from ortloom.kernels import library, team
from ortloom.kernels.packed_contract import (
    LINEAR_INPUTS,
    PACKED_LINEAR,
    PackedAttributes,
)
from ortloom.kernels.packing import pack_float

ATTRIBUTES = PackedAttributes("f32", 512, 512)
OUTPUTS = {"y": ("float32", 2)}


@pytest.fixture
def inputs():
    generator = np.random.default_rng(3)
    return {
        "x": generator.standard_normal((40, 512), dtype=np.float32),
        "weight": pack_float(generator.standard_normal((512, 512), dtype=np.float32), "f32"),
    }


@pytest.fixture
def multiply(run_node, inputs):
    def call(threads):
        return run_node(PACKED_LINEAR, LINEAR_INPUTS, OUTPUTS, ATTRIBUTES, inputs, threads=threads)

    return call


def test_without_configuration_there_is_one_thread():
    code = "from ortloom.kernels import team; print(team.threads())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize("threads", [0, -1, 257, 1 << 40])
def test_zero_and_too_many_threads_are_refused(threads):
    with pytest.raises(ValueError, match="threads must be 1 to 256"):
        team.configure(threads, 0)
    assert team.threads() == 1


@pytest.mark.parametrize("spin", [-1, 1_000_001])
def test_spin_times_out_of_range_are_refused(spin):
    with pytest.raises(ValueError, match="spin_microseconds must be 0 to 1000000"):
        team.configure(2, spin)
    assert team.threads() == 1


def test_the_library_checks_for_itself():
    raw = team._library(library.library_path())
    assert raw.OrtloomTeamConfigure(0, 0) == b"the team needs 1 to 256 threads"
    assert raw.OrtloomTeamConfigure(257, 0) == b"the team needs 1 to 256 threads"
    assert b"spin time must be" in raw.OrtloomTeamConfigure(2, -1)
    assert raw.OrtloomTeamThreads() == 1


def test_a_missing_library_is_explained(monkeypatch, tmp_path):
    monkeypatch.setenv(library.NO_OPS_VARIABLE, "1")
    with pytest.raises(KernelUnavailable, match="switched off"):
        team.configure(2, 0)
    monkeypatch.delenv(library.NO_OPS_VARIABLE)
    (tmp_path / library.LIBRARY_NAME).write_bytes(b"not a library")
    monkeypatch.setattr("ortloom.kernels.__path__", [str(tmp_path)])
    with pytest.raises(KernelUnavailable, match="cannot be loaded"):
        team.configure(2, 0)


@pytest.mark.parametrize("spin", [0, 1000])
def test_any_number_of_threads_gives_the_same_bits(multiply, spin):
    expected = multiply(1)[0]
    for threads in (2, 3, 4, 9, 2, 1):
        team.configure(threads, spin)
        for _ in range(20):
            assert (multiply(threads)[0] == expected).all()


def test_calls_from_several_threads_at_once(multiply):
    expected = multiply(3)[0]
    wrong = []

    def work():
        for _ in range(50):
            if not (multiply(3)[0] == expected).all():
                wrong.append(threading.get_ident())

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for _ in range(10):  # and while the team is taken apart and made anew
        team.configure(3, 10)
    for worker in workers:
        worker.join()
    assert not wrong


RUN = """
import os, sys, time
import numpy as np, onnxruntime as ort
from ortloom.kernels import load, team
from ortloom.kernels.packed_contract import LINEAR_INPUTS
from ortloom.kernels.probe_model import one_node_model
options = ort.SessionOptions()
options.intra_op_num_threads = 1
load.register(options)
types = {"x": ("float32", 2), "weight": ("float32", 3)}
model = one_node_model("PackedLinear", {"format": "f32", "N": 512, "K": 512}, LINEAR_INPUTS, types,
                       {"y": ("float32", 2)})
session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
feed = {"x": np.ones((40, 512), np.float32), "weight": np.ones((32, 512, 16), np.float32)}
def run():
    assert (session.run(None, feed)[0] == 512).all()
team.configure(3, SPIN)
run()
"""


def run_python(code, spin=0):
    return subprocess.run(
        [sys.executable, "-c", RUN.replace("SPIN", str(spin)) + code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_forked_child_makes_a_team_of_its_own():
    code = (
        "child = os.fork()\n"
        "if child == 0:\n"
        "    alone = len(os.listdir('/proc/self/task'))\n"
        "    assert team.threads() == 3\n"
        "    run()\n"
        "    os._exit(0 if alone == 1 and len(os.listdir('/proc/self/task')) == 3 else 3)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "run()\n"
        "assert len(os.listdir('/proc/self/task')) >= 3\n"
    )
    done = run_python(code, spin=100000)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("spin", [0, 1000000])
def test_the_process_ends_cleanly_with_workers_asleep_or_spinning(spin):
    done = run_python("print('done')", spin)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


def test_an_idle_team_uses_no_cpu_time():
    """All workers sleep: their CPU clocks stand still while the process does nothing."""
    code = (
        "def clocks():\n"
        "    paths = ['/proc/self/task/%s/stat' % t for t in os.listdir('/proc/self/task')]\n"
        "    fields = [open(p).read().rsplit(')', 1)[1].split() for p in paths]\n"
        "    return [f[0] for f in fields], sum(int(f[11]) + int(f[12]) for f in fields)\n"
        "limit = time.monotonic() + 20\n"
        "while sorted(clocks()[0]).count('S') < 2 and time.monotonic() < limit: pass\n"
        "states, begin = clocks()\n"
        "time.sleep(0.3)\n"
        "states, end = clocks()\n"
        "assert end - begin <= 2, (states, begin, end)\n"
    )
    done = run_python(code, spin=100)
    assert (done.returncode, done.stderr) == (0, "")


def test_reconfiguring_ends_the_old_threads(multiply):
    def count():
        return len(os.listdir("/proc/self/task"))

    multiply(1)
    base = count()
    multiply(4)
    assert count() == base + 3
    multiply(2)
    assert count() == base + 1
    multiply(1)
    assert count() == base
