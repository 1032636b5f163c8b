"""Runs single-node models on the op library through ONNX Runtime."""

from dataclasses import asdict

import numpy as np
import onnxruntime as ort

from ortloom.kernels import isa, load, team
from ortloom.kernels.contract import POOLS
from ortloom.kernels.pool_values import element_type
from ortloom.kernels.probe_model import ELEMENT_TYPES, one_node_model, paged_attention_model

TEAM_SPIN = 50  # microseconds


def use_threads(threads):
    """The ops' threads are the library's team, whatever session runs them."""
    if team.threads() != threads:
        team.configure(threads, TEAM_SPIN)


def session_options(threads=1):
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    # Memory of its own for each output, so that sanitizers see where it ends.
    options.enable_cpu_mem_arena = False
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def ort_value(array):
    """An OrtValue over the array's memory; uint16 is bfloat16."""
    if array.dtype == np.uint16:
        kind = ELEMENT_TYPES["bfloat16"]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)
    return ort.OrtValue.ortvalue_from_numpy(array)


def run_bound(session, inputs):
    """Run with each pool bound as input and output; gives (output, key pool, value pool), and the
    scale pools if there are any."""
    # An OrtValue made from an array shares its memory and does not keep it alive.
    arrays = {name: np.array(array) for name, array in inputs.items()}
    tokens, width = inputs["query"].shape
    if "key" not in inputs:
        width -= 2 * inputs["key_cache"].shape[2] * inputs["key_cache"].shape[3]
    output = np.full((tokens, width), np.nan, dtype=np.float32)
    binding = session.io_binding()
    values = {name: ort_value(array) for name, array in arrays.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    pools = [name for name in POOLS if name in arrays]
    for name in pools:
        binding.bind_ortvalue_output(f"{name}_out", values[name])
    binding.bind_ortvalue_output("output", ort.OrtValue.ortvalue_from_numpy(output))
    session.run_with_iobinding(binding)
    return output, *(arrays[name] for name in pools)


class OpRunner:
    """Runs single-node models on the op library; keeps one session for each kind."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._sessions = {}

    def session(self, attributes, inputs, tier=None):
        pools = element_type(inputs["key_cache"])
        key = (attributes, tuple(sorted(inputs)), pools, tier)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = session_options()
                load.register(options)
            self._sessions[key] = ort.InferenceSession(
                paged_attention_model(attributes, tuple(inputs), pools),
                options,
                providers=["CPUExecutionProvider"],
            )
        return self._sessions[key]

    def __call__(self, attributes, inputs, threads=1, tier=None):
        use_threads(threads)
        return run_bound(self.session(attributes, inputs, tier), inputs)


class NodeRunner:
    """Runs any other op of ours as a single-node model; keeps one session for each kind."""

    def __init__(self, monkeypatch):
        self._monkeypatch = monkeypatch
        self._sessions = {}

    def __call__(
        self, op, slots, outputs, attributes, inputs, *, threads=1, tier=None, library=None
    ):
        """`attributes` is a contract's dataclass; uint16 inputs are bfloat16.

        `library` is run in place of the installed one.
        """
        types = {
            name: ("bfloat16" if array.dtype == np.uint16 else array.dtype.name, array.ndim)
            for name, array in inputs.items()
        }
        key = (op, attributes, tuple(sorted(types.items())), tuple(outputs), tier, library)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = session_options()
                if library is None:
                    load.register(options)
                else:
                    options.register_custom_ops_library(str(library))
                model = one_node_model(op, asdict(attributes), slots, types, outputs)
                self._sessions[key] = ort.InferenceSession(
                    model, options, providers=["CPUExecutionProvider"]
                )
        use_threads(threads)
        values = {}
        kept = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        for name, array in kept.items():
            values[name] = ort_value(array)
        got = self._sessions[key].run_with_ort_values(None, values)
        return [np.array(value.numpy()) for value in got]
