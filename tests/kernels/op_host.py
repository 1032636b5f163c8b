"""Runs the op library inside native/op_host.cc, for any processor that can be run here."""

import os
import struct
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from ortloom.kernels.isa import ISA_VARIABLE, parse_report
from ortloom.kernels.probe_model import ELEMENT_TYPES

HERE = Path(__file__).resolve().parent
SOURCE = HERE / "native" / "op_host.cc"
CSRC = HERE.parents[1] / "kernels" / "csrc"
COMPILE = ("-std=c++17", "-O1", f"-I{CSRC}", str(SOURCE), "-ldl", "-pthread")
DTYPES = {number: np.dtype(name) for name, number in ELEMENT_TYPES.items() if name != "bfloat16"}


@dataclass(frozen=True)
class Call:
    """`inputs` by name, uint16 ones are bfloat16; `slots` is the order of the op's inputs.

    `outputs` holds one entry an output: the input whose memory it shares, or None.
    """

    op: str
    slots: tuple[str, ...]
    attributes: dict
    inputs: dict
    outputs: tuple[str | None, ...] = (None,)
    threads: int = 1


def call_of(op, slots, attributes, inputs, **options):
    return Call(op, tuple(slots), asdict(attributes), inputs, **options)


def _text(text):
    return struct.pack("<I", len(text.encode())) + text.encode()


def _attribute(name, value):
    if isinstance(value, str):
        return _text(name) + b"\2" + _text(value)
    if isinstance(value, float):
        return _text(name) + b"\1" + struct.pack("<f", value)
    return _text(name) + b"\0" + struct.pack("<q", value)


def _tensor(array):
    if array is None:
        return struct.pack("<i", 0)
    kind = ELEMENT_TYPES["bfloat16" if array.dtype == np.uint16 else array.dtype.name]
    head = struct.pack(f"<iI{array.ndim}q", kind, array.ndim, *array.shape)
    return head + np.ascontiguousarray(array).tobytes()


def _encoded(call):
    parts = [_text(call.op), struct.pack("<i", call.threads)]
    parts.append(struct.pack("<I", len(call.attributes)))
    parts += [_attribute(name, value) for name, value in call.attributes.items()]
    parts.append(struct.pack("<I", len(call.slots)))
    parts += [_tensor(call.inputs.get(name)) for name in call.slots]
    parts.append(struct.pack("<I", len(call.outputs)))
    for shared in call.outputs:
        parts.append(struct.pack("<i", -1 if shared is None else call.slots.index(shared)))
    return b"".join(parts)


class _Results:
    def __init__(self, data):
        self._data, self._at = data, 0

    def take(self, layout):
        values = struct.unpack_from("<" + layout, self._data, self._at)
        self._at += struct.calcsize("<" + layout)
        return values

    def text(self):
        (size,) = self.take("I")
        (raw,) = self.take(f"{size}s")
        return raw.decode()

    def tensor(self):
        kind, rank = self.take("iI")
        shape = self.take(f"{rank}q")
        dtype = np.dtype(np.uint16) if kind == ELEMENT_TYPES["bfloat16"] else DTYPES[kind]
        count = int(np.prod(shape, dtype=np.int64))
        (raw,) = self.take(f"{count * dtype.itemsize}s")
        return np.frombuffer(raw, dtype).reshape(shape).copy()


class OpRefused(Exception):
    """The library refused a call; the text is its own."""


@dataclass
class OpHost:
    """`command` runs the host: an emulator and its options may come first."""

    command: tuple
    library: Path
    folder: Path
    environment: dict = field(default_factory=dict)

    def _run(self, *arguments, tier=None, **variables):
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("ORTLOOM_", "VT_"))}
        environment = {**clean, **self.environment, **variables}
        if tier is not None:
            environment[ISA_VARIABLE] = tier
        return subprocess.run(
            [str(part) for part in (*self.command, self.library, *arguments)],
            capture_output=True, text=True, check=False, env=environment, timeout=900,
        )  # fmt: skip

    def report(self, **variables):
        done = self._run("report", **variables)
        assert done.returncode == 0, done.stderr
        return parse_report(done.stdout)

    def refusal(self, **variables):
        """What the host says where the library cannot be registered."""
        (self.folder / "calls").write_bytes(b"")
        done = self._run("run", self.folder / "calls", self.folder / "results", **variables)
        assert done.returncode == 2, f"{done.returncode}: {done.stderr}"
        return done.stderr

    def __call__(self, calls, tier=None):
        """A list of outputs for each call, or an OpRefused in its place."""
        calls = list(calls)
        (self.folder / "calls").write_bytes(b"".join(map(_encoded, calls)))
        done = self._run("run", self.folder / "calls", self.folder / "results", tier=tier)
        assert done.returncode == 0, f"{done.returncode}: {done.stdout}{done.stderr}"
        results = _Results((self.folder / "results").read_bytes())
        given = []
        for call in calls:
            error = results.text()
            given.append(OpRefused(error) if error else [results.tensor() for _ in call.outputs])
        return given
