"""Speed of the packed linear op against what the machine can do and against ONNX Runtime's ops.

    python -m benchmarks.linear [--shapes 2048x2048 576x1536] [--formats u4 u8 f32] [--rows 1 8 128]

Shapes are NxK (with ":silu" behind for a gated one: N rows of gate and up projection together).
Each line gives GFLOP/s (2 N K M / time), GB/s of weights read, and their shares of the machine's
own rates, measured in the same run on the same number of threads: memory reads for one row,
dot products of 4-bit or 8-bit codes with int8 (quantised formats; machine_peak.cc says which
instructions that is) or fp32 multiply-adds for more. Calls go in turn through as
many copies of the weights as exceed the caches, so that one row reads memory as a model does.
ONNX Runtime's op of the same kind (MatMulNBits with int8 activations, or Gemm) runs in between.
Times are the shortest of interleaved calls, which other load on the machine disturbs least; with
one thread they are CPU times, for the same reason.
"""

import argparse
import ctypes
import os
import subprocess
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

from ortloom.kernels import isa, load, team
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PackedAttributes
from ortloom.kernels.packing import pack_blocks, pack_codes, pack_float
from ortloom.kernels.probe_model import ELEMENT_TYPES, one_node_model

FLUSH_BYTES = 192 << 20
BLOCK = 32
SPIN = 200


class Machine:
    """The rates of the machine on `threads` threads."""

    def __init__(self, threads):
        folder = tempfile.TemporaryDirectory()
        library = Path(folder.name) / "machine_peak.so"
        source = Path(__file__).with_name("machine_peak.cc")
        subprocess.run(
            [os.environ.get("CXX", "g++"), "-O3", "-march=native", "-std=c++17", "-shared", "-fPIC",
             "-pthread", str(source), "-o", str(library)],
            check=True,
        )  # fmt: skip
        self._calls = ctypes.CDLL(str(library))
        self._folder, self._threads = folder, threads
        for name in ("read_rate", "float_rate", "int8_rate", "int4_rate"):
            getattr(self._calls, name).restype = ctypes.c_double
        self.read = self.floating = self.int8 = self.int4 = 0.0
        self.measure()

    def measure(self):
        """Keeps the best of all measurements."""
        self.read = max(self.read, self._calls.read_rate(self._threads, 240))
        self.floating = max(self.floating, self._calls.float_rate(self._threads, 300))
        self.int8 = max(self.int8, self._calls.int8_rate(self._threads, 300))
        self.int4 = max(self.int4, self._calls.int4_rate(self._threads, 300))

    def peak(self, name):
        """Of the unit that the format `name` uses."""
        return {"u4": self.int4, "u8": self.int8}.get(name, self.floating)

    def __str__(self):
        return (
            f"{self._threads} threads: read {self.read / 1e9:.1f} GB/s, fp32 "
            f"{self.floating / 1e9:.0f} GFLOP/s, int8 {self.int8 / 1e9:.0f} GOP/s, "
            f"int4 {self.int4 / 1e9:.0f} GOP/s"
        )


def draw_weights(attributes, generator):
    rows, width = attributes.N, attributes.K
    if not attributes.block_size:
        values = generator.standard_normal((rows, width), dtype=np.float32)
        return {"weight": pack_float(values, attributes.format)}
    top = 256 if attributes.format == "u8" else 16
    codes = generator.integers(0, top, (rows, width), dtype=np.uint8)
    scales = generator.random((rows, width // attributes.block_size)) * 0.01
    return {
        "weight": pack_codes(codes, attributes.format),
        "scales": pack_blocks(scales.astype(np.float16)),
    }


def options_for(threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


class Bound:
    """A session with as many copies of its weights as the caches cannot hold."""

    def __init__(self, session, weights, output, x, bf16=False):
        size = sum(array.nbytes for array in weights.values())
        copies = max(1, -(-FLUSH_BYTES // size)) if size and len(x) == 1 else 1
        self._session, self._turn, self._bindings, self._kept = session, 0, [], []
        for _ in range(copies):
            binding = session.io_binding()
            for name, array in {"x": x, **{n: a.copy() for n, a in weights.items()}}.items():
                value = (
                    ort.OrtValue.ortvalue_from_numpy_with_onnx_type(
                        array, ELEMENT_TYPES["bfloat16"]
                    )
                    if bf16 and name == "weight"
                    else ort.OrtValue.ortvalue_from_numpy(array)
                )
                binding.bind_ortvalue_input(name, value)
                self._kept += [array, value]
            binding.bind_ortvalue_output("y", ort.OrtValue.ortvalue_from_numpy(output))
            self._bindings.append(binding)

    def __call__(self):
        self._turn = (self._turn + 1) % len(self._bindings)
        self._session.run_with_iobinding(self._bindings[self._turn])


def ours(attributes, weights, x):
    types = {n: (a.dtype.name, a.ndim) for n, a in {"x": x, **weights}.items()}
    if attributes.format == "bf16":
        types["weight"] = ("bfloat16", 3)
    options = options_for(1)
    load.register(options)
    model = one_node_model(
        PACKED_LINEAR, asdict(attributes), LINEAR_INPUTS, types, {"y": ("float32", 2)}
    )
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    width = attributes.N // 2 if attributes.activation else attributes.N
    output = np.empty((len(x), width), dtype=np.float32)
    return Bound(session, weights, output, x, attributes.format == "bf16")


class Theirs:
    """ORT's op over weights that are initialisers, as it wants them for prepacking.

    One session for each copy of the weights; with one row there must be several, see Bound.
    """

    def __init__(self, attributes, x, threads):
        generator = np.random.default_rng(3)
        rows, width = attributes.N, attributes.K
        bits = {"u4": 4, "u8": 8}.get(attributes.format)
        size = rows * width * (bits or 32) // 8
        copies = min(24, max(1, -(-FLUSH_BYTES // size))) if len(x) == 1 else 1
        if bits:
            shape = (rows, width // BLOCK, BLOCK * bits // 8)
            data = {
                "B": generator.integers(0, 256, shape, dtype=np.uint8),
                "scales": generator.random((rows, width // BLOCK), dtype=np.float32) * 0.01,
            }
            node = helper.make_node(
                "MatMulNBits", ["x", "B", "scales"], ["y"], domain="com.microsoft", K=width,
                N=rows, bits=bits, block_size=BLOCK, accuracy_level=4,
            )  # fmt: skip
        else:
            data = {"B": generator.standard_normal((rows, width), dtype=np.float32)}
            node = helper.make_node("Gemm", ["x", "B"], ["y"], transB=1)
        initialisers = [
            helper.make_tensor(
                name,
                TensorProto.UINT8 if array.dtype == np.uint8 else TensorProto.FLOAT,
                array.shape,
                array.tobytes(),
                raw=True,
            )
            for name, array in data.items()
        ]
        graph = helper.make_graph(
            [node],
            "theirs",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["T", width])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["T", rows])],
            initialisers,
        )
        imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=imports, ir_version=8).SerializeToString()
        output = np.empty((len(x), rows), dtype=np.float32)
        self._runs, self._turn = [], 0
        for _ in range(copies):
            options = options_for(threads)
            # One pool would spin for each session.
            options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN))
            session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
            self._runs.append(Bound(session, {}, output, x))

    def __call__(self):
        self._turn = (self._turn + 1) % len(self._runs)
        self._runs[self._turn]()


def interleaved(calls, seconds, clock):
    """Shortest time of each call, in turn for `seconds`."""
    for call in calls:
        call()
    times = [[] for _ in calls]
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for call, list_ in zip(calls, times, strict=True):
            for _ in range(4):
                start = clock()
                call()
                list_.append(clock() - start)
    return [min(t) for t in times]


def report(name, elapsed, attributes, rows, size, machine):
    flops = 2 * attributes.N * attributes.K * rows / elapsed
    peak = machine.peak(attributes.format)
    print(
        f"  {name:<12} {elapsed * 1e6:9.1f} us {flops / 1e9:8.1f} GFLOP/s ({flops / peak:4.0%})"
        f" {size / elapsed / 1e9:7.1f} GB/s ({size / elapsed / machine.read:4.0%})"
    )


def measure(options, shape, name, machine):
    size, _, activation = shape.partition(":")
    n, k = (int(part) for part in size.split("x"))
    block = BLOCK if name in ("u4", "u8") else 0
    attributes = PackedAttributes(name, n, k, block, activation)
    weights = draw_weights(attributes, np.random.default_rng(1))
    bytes_read = sum(array.nbytes for array in weights.values())
    for rows in options.rows:
        x = np.random.default_rng(2).standard_normal((rows, k), dtype=np.float32)
        print(f"{shape} {name} M={rows}")
        calls = {"ortloom": ours(attributes, weights, x)}
        if options.peers and not activation and name in ("u4", "u8", "f32"):
            calls["onnxruntime"] = Theirs(attributes, x, options.threads)
        clock = time.thread_time if options.threads == 1 else time.perf_counter
        times = interleaved(list(calls.values()), options.seconds * len(calls), clock)
        for label, elapsed in zip(calls, times, strict=True):
            report(label, elapsed, attributes, rows, bytes_read, machine)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["2048x2048", "576x1536"])
    parser.add_argument("--formats", nargs="+", default=["u4", "u8", "bf16", "f32"])
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 2, 8, 32, 128, 512])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--no-peers", dest="peers", action="store_false")
    options = parser.parse_args()
    machine = Machine(options.threads)
    team.configure(options.threads, SPIN)
    print(f"{machine}; tier {isa.isa_report().used}, onnxruntime {ort.__version__}")
    for shape in options.shapes:
        for name in options.formats:
            measure(options, shape, name, machine)
    machine.measure()
    print(machine)


if __name__ == "__main__":
    main()
