"""Layers as one node and as the seven ops they stand for, for the tests of `DecoderLayer`."""

from dataclasses import asdict, dataclass

import numpy as np
import onnxruntime as ort
from packed_cases import MATRIX, attributes_for, weights

from ortloom.kernels import isa, load
from ortloom.kernels.contract import (
    HEAD_MAJOR_LAYOUT,
    INPUTS,
    POOL_OPS,
    POOLS,
    PagedAttentionAttributes,
)
from ortloom.kernels.layer_contract import (
    LAYER_INPUTS,
    LAYER_POOL_INPUTS,
    MATRICES,
    MATRIX_ATTRIBUTES,
    MATRIX_INPUTS,
    layer_name,
)
from ortloom.kernels.norm_contract import (
    NORM_INPUTS,
    SKIP_RMS_NORM,
    NormAttributes,
)
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR
from ortloom.kernels.packing import pack_float
from ortloom.kernels.probe_model import one_node_model

U4 = ("u4", 32, np.float16, False)
U4_MINIMA = ("u4", 16, np.float32, True)
U8 = ("u8", 32, np.float16, False)
F32, F16, BF16 = ((name, 0, None, False) for name in ("f32", "f16", "bf16"))

HIDDEN, FFN, HEAD_SIZE = 96, 160, 64
ROTARY = PagedAttentionAttributes(4, 2, do_rotary=1, kv_layout=HEAD_MAJOR_LAYOUT)


@dataclass(frozen=True)
class Layer:
    """What a layer is made of.

    Args:
        matrices: kinds of the four matrices, as in `packed_cases`.
        attention: of the node; the layout is always head-major.
        skip: whether there is a sum in front of the first norm.
        pools: element type.
        features: what `StepFactory.step` draws besides: norms, sinks.
        epsilons: of the norms.
        form: number behind the op's name.
        changes: (name, value) of attributes to give in place of the right ones; None gives none.
    """

    matrices: tuple = (U4,) * 4
    attention: PagedAttentionAttributes = ROTARY
    bias: bool = False
    skip: bool = True
    activation: str = "silu"
    pools: str = "float32"
    features: tuple = ()
    epsilons: tuple = (0.25, 0.01)
    form: int = 0
    changes: tuple = ()

    @property
    def op(self):
        return layer_name(POOL_OPS[self.pools], self.form)

    @property
    def sizes(self):
        """(N, K) of each matrix."""
        heads, kv_heads = self.attention.num_heads, self.attention.kv_num_heads
        return {
            "qkv": ((heads + 2 * kv_heads) * HEAD_SIZE, HIDDEN),
            "o": (HIDDEN, heads * HEAD_SIZE),
            "gate_up": (2 * FFN, HIDDEN),
            "down": (HIDDEN, FFN),
        }

    def matrix(self, prefix):
        """Attributes of the linear of that prefix."""
        kind = self.matrices[MATRICES.index(prefix)]
        activation = self.activation if prefix == "gate_up" else ""
        return attributes_for(kind, *self.sizes[prefix], activation)

    def attributes(self):
        """Attributes of the layer's node."""
        made = asdict(self.attention)
        for prefix in MATRICES:
            found = asdict(self.matrix(prefix))
            made |= {f"{prefix}_{name}": found[name] for name in MATRIX_ATTRIBUTES}
        made["activation"] = self.activation
        made["attention_norm_epsilon"], made["mlp_norm_epsilon"] = self.epsilons
        made.update(self.changes)
        return {name: value for name, value in made.items() if value is not None}


def layer_weights(layer, seed=0):
    """Matrices, biases and norms of a layer."""
    generator = np.random.default_rng(seed)
    made = {
        name: generator.uniform(0.5, 1.5, HIDDEN).astype(np.float32)
        for name in ("attention_gamma", "mlp_gamma")
    }
    for number, (prefix, kind) in enumerate(zip(MATRICES, layer.matrices, strict=True)):
        rows, width = layer.sizes[prefix]
        given = weights(kind, rows, width, bias=layer.bias, seed=seed + 10 * number)
        if kind in (F32, F16, BF16):  # small enough for softmax to see several keys
            plain = generator.standard_normal((rows, width), np.float32) / np.sqrt(width)
            given["weight"] = pack_float(plain.astype(np.float32), kind[0])
        made |= {f"{prefix}_{name}": array for name, array in given.items()}
    return made


def layer_inputs(steps, layer, requests, seed=0, **kinds):
    """Everything a node takes, by the names of `LAYER_INPUTS`; `requests` as in StepFactory."""
    factory = steps(seed)
    features = dict.fromkeys(layer.features, True)
    step = factory.step(layer.attention, requests, pools=layer.pools, **features, **kinds)
    rows = len(step["query"])
    inputs = {"x": factory.floats(rows, HIDDEN)}
    if layer.skip:
        inputs["skip"] = factory.floats(rows, HIDDEN)
    inputs |= {name: step[name] for name in LAYER_POOL_INPUTS if name in step}
    return inputs | layer_weights(layer, seed)


def ort_value(array):
    """An OrtValue over the array's memory; uint16 is bfloat16."""
    if array.dtype == np.uint16:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16)
    return ort.OrtValue.ortvalue_from_numpy(array)


def layer_model(layer, inputs):
    """A model of one node with every input of its own."""

    def kind(array):
        name = "bfloat16" if array.dtype == np.uint16 else array.dtype.name
        return name, array.ndim

    types = {name: kind(array) for name, array in inputs.items()}
    outputs = {"y": MATRIX, "sum": MATRIX}
    outputs |= {f"{name}_out": types[name] for name in POOLS if name in inputs}
    return one_node_model(layer.op, layer.attributes(), LAYER_INPUTS, types, outputs)


def run_bound_layer(session, inputs, apart=()):
    """y, sum and the pools after the call, each pool bound in place but those in `apart`.

    The arrays given as pools are written to.
    """
    binding = session.io_binding()
    values = {name: ort_value(array) for name, array in inputs.items()}
    for name, value in values.items():
        binding.bind_ortvalue_input(name, value)
    pools = [name for name in POOLS if name in inputs]
    for name in pools:
        if name in apart:
            binding.bind_output(f"{name}_out")
        else:
            binding.bind_ortvalue_output(f"{name}_out", values[name])
    found = [np.full(inputs["x"].shape, np.nan, np.float32) for _ in range(2)]
    for name, array in zip(("y", "sum"), found, strict=True):
        binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))
    session.run_with_iobinding(binding)
    return *found, *(inputs[name] for name in pools)


def with_own_pools(inputs):
    """The same inputs with pools that a call may write to."""
    return {name: array.copy() if name in POOLS else array for name, array in inputs.items()}


class LayerRunner:
    """Runs layers as one node on the op library; keeps one session for each kind."""

    def __init__(self, monkeypatch, options, use_threads):
        self._monkeypatch, self._options = monkeypatch, options
        self._use_threads = use_threads
        self._sessions = {}

    def session(self, layer, inputs, tier=None, library=None):
        key = (layer, tuple(sorted(inputs)), tier, library)
        if key not in self._sessions:
            with self._monkeypatch.context() as patch:
                if tier is not None:
                    patch.setenv(isa.ISA_VARIABLE, tier)
                options = self._options()
                if library is None:
                    load.register(options)
                else:
                    options.register_custom_ops_library(str(library))
            self._sessions[key] = ort.InferenceSession(
                layer_model(layer, inputs), options, providers=["CPUExecutionProvider"]
            )
        return self._sessions[key]

    def __call__(self, layer, inputs, threads=1, tier=None, library=None):
        self._use_threads(threads)
        return run_bound_layer(self.session(layer, inputs, tier, library), with_own_pools(inputs))


class ChainRunner:
    """Runs a layer's seven ops one by one: what `LayerRunner` must give."""

    def __init__(self, run_node, run_op):
        self._run_node, self._run_op = run_node, run_op

    def _linear(self, prefix, layer, inputs, x, tier):
        given = {n: inputs[f"{prefix}_{n}"] for n in MATRIX_INPUTS if f"{prefix}_{n}" in inputs}
        return self._run_node(
            PACKED_LINEAR, LINEAR_INPUTS, {"y": MATRIX}, layer.matrix(prefix),
            {"x": x, **given}, tier=tier,
        )[0]  # fmt: skip

    def _norm(self, inputs, epsilon, tier):
        outputs = {"y": MATRIX, "sum": MATRIX}
        return self._run_node(
            SKIP_RMS_NORM, NORM_INPUTS, outputs, NormAttributes(epsilon), inputs, tier=tier
        )

    def __call__(self, layer, inputs, tier=None):
        rows = {name: inputs[name] for name in ("x", "skip") if name in inputs}
        rows["gamma"] = inputs["attention_gamma"]
        normed, residual = self._norm(rows, layer.epsilons[0], tier)
        qkv = self._linear("qkv", layer, inputs, normed, tier)
        step = {name: inputs[name] for name in INPUTS if name in inputs}
        mixed, *pools = self._run_op(layer.attention, {"query": qkv, **step}, tier=tier)
        projected = self._linear("o", layer, inputs, mixed, tier)
        rows = {"x": projected, "skip": residual, "gamma": inputs["mlp_gamma"]}
        normed, total = self._norm(rows, layer.epsilons[1], tier)
        gated = self._linear("gate_up", layer, inputs, normed, tier)
        return self._linear("down", layer, inputs, gated, tier), total, *pools


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


def assert_same(got, wanted):
    """All bits of y, sum and the pools."""
    assert len(got) == len(wanted)
    for name, a, b in zip(("y", "sum", *POOLS), got, wanted, strict=False):
        assert a.shape == b.shape, name
        assert np.array_equal(bits(a), bits(b)), f"{name} differs"
