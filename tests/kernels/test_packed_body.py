"""The bodies of the packed ops: agreement with the oracle, batch invariance, what is refused."""

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.packed_body import (
    add_packed_bodies,
    form_name,
    form_of,
    node_form,
    packed_function,
)
from ortloom.kernels.packed_contract import (
    EMBEDDING_INPUTS,
    LINEAR_INPUTS,
    PACKED_EMBEDDING,
    PACKED_LINEAR,
)
from ortloom.kernels.packed_contract import PackedAttributes as Attributes
from ortloom.kernels.packed_reference import packed_embedding, packed_linear
from ortloom.kernels.packing import pack_blocks, pack_codes, pack_float

TOLERANCE = 5e-6
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET, IR_VERSION = (23, 10) if VERSION >= (1, 23) else (21, 10)
BFLOAT16 = np.dtype(np.uint16)
TYPES = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    BFLOAT16: TensorProto.BFLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int64): TensorProto.INT64,
}
FORMS = [
    Attributes("f32", 48, 96),
    Attributes("f16", 40, 64),
    Attributes("bf16", 33, 160),
    *[Attributes("u8", 40, 512, block) for block in (16, 32, 64, 128, 256)],
    *[Attributes("u4", 40, 512, block) for block in (16, 32, 64, 128, 256)],
]


def weights_of(attributes, rng, mins=False, scale_type=np.float32):
    shape = attributes.N, attributes.K
    if not attributes.block_size:
        values = rng.standard_normal(shape, dtype=np.float32)
        return {"weight": pack_float(values, attributes.format)}
    codes = rng.integers(0, {"u8": 256, "u4": 16}[attributes.format], shape, dtype=np.uint8)
    blocks = (shape[0], shape[1] // attributes.block_size)
    inputs = {
        "weight": pack_codes(codes, attributes.format),
        "scales": pack_blocks((rng.standard_normal(blocks) / 64).astype(scale_type)),
    }
    if mins:
        inputs["mins"] = pack_blocks((rng.standard_normal(blocks) / 4).astype(scale_type))
    return inputs


def initializer(name, array):
    kind = TYPES[array.dtype]
    return helper.make_tensor(name, kind, array.shape, array.tobytes(), raw=True)


def nodes_model(nodes, weights, data, outputs, rename=False):
    """A model of packed nodes, their weights as constants."""
    info = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "packed",
            [info(n, TYPES[a.dtype], ["T", *a.shape[1:]]) for n, a in data.items()],
            [info(name, TensorProto.FLOAT, ["T", f"{name}_width"]) for name in outputs],
            [initializer(name, array) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
    )
    add_packed_bodies(model, rename)
    onnx.checker.check_model(model)
    return model


def packed_node(op, attributes, given, suffix="", name=None):
    names = LINEAR_INPUTS if op == PACKED_LINEAR else EMBEDDING_INPUTS
    inputs = [names[0], *(n + suffix if n in given else "" for n in names[1:])]
    while not inputs[-1]:
        inputs.pop()
    facts = {k: v for k, v in dataclasses.asdict(attributes).items() if v != ""}
    if op == PACKED_EMBEDDING:
        facts.pop("activation", None)
    return helper.make_node(
        op, inputs, [f"out{suffix}"], name or f"n{suffix}", domain=DOMAIN, **facts
    )


def start(model, options, threads=1):
    return ort.InferenceSession(
        model.SerializeToString(), options(threads), providers=["CPUExecutionProvider"]
    )


@pytest.fixture
def session_of(options):
    def make(op, attributes, weights, data, threads=1):
        model = nodes_model([packed_node(op, attributes, weights)], weights, data, ["out"])
        return start(model, options, threads)

    return make


def check_close(got, expected):
    assert got.shape == expected.shape
    if expected.size:
        limit = TOLERANCE * max(float(np.abs(expected).max()), 1e-3)
        assert float(np.abs(got - expected).max()) <= limit


@pytest.fixture
def linear_agrees(session_of):
    def check(attributes, weights, rng, tokens=(0, 1, 2, 7, 40), x=None):
        wide = rng.standard_normal((max(tokens), attributes.K), dtype=np.float32) * 3
        session = session_of(PACKED_LINEAR, attributes, weights, {"x": wide})
        for count in tokens:
            rows = wide[:count] if x is None else x
            expected = packed_linear(attributes, {"x": rows, **weights})
            check_close(session.run(None, {"x": rows})[0], expected)

    return check


@pytest.mark.parametrize("attributes", FORMS, ids=str)
def test_linear_formats(linear_agrees, attributes):
    rng = np.random.default_rng(1)
    linear_agrees(attributes, weights_of(attributes, rng), rng)
    bias = rng.standard_normal(attributes.N, dtype=np.float32) * 10
    linear_agrees(attributes, {**weights_of(attributes, rng), "bias": bias}, rng)
    if attributes.block_size:
        linear_agrees(attributes, weights_of(attributes, rng, True, np.float16), rng)
        linear_agrees(attributes, {**weights_of(attributes, rng, True), "bias": bias}, rng)


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh"])
@pytest.mark.parametrize("format", ["bf16", "u8", "u4"])
def test_gated_linear(linear_agrees, format, activation):
    rng = np.random.default_rng(2)
    block = 0 if format == "bf16" else 32
    attributes = Attributes(format, 96, 128, block, activation)
    weights = weights_of(attributes, rng, mins=format == "u4", scale_type=np.float16)
    linear_agrees(attributes, weights, rng)
    linear_agrees(attributes, {**weights, "bias": np.ones(96, np.float32)}, rng, (3,))


def test_wide_rows_of_one_sign(linear_agrees):
    """Sums of code times activation are large against their differences."""
    rng = np.random.default_rng(3)
    x = np.abs(rng.standard_normal((5, 4096), dtype=np.float32))
    for format, mins in (("u8", False), ("u4", False), ("u4", True)):
        attributes = Attributes(format, 64, 4096, 32)
        linear_agrees(attributes, weights_of(attributes, rng, mins), rng, (5,), x)


def test_groups_of_zeros_and_tiny_values(linear_agrees):
    rng = np.random.default_rng(4)
    attributes = Attributes("u8", 32, 96, 32)
    x = rng.standard_normal((4, 96), dtype=np.float32)
    x[0] = 0
    x[1, 32:64] = 0
    x[2, :32] *= np.float32(1e-39)
    linear_agrees(attributes, weights_of(attributes, rng), rng, (4,), x)


@pytest.mark.parametrize("attributes", [Attributes("f32", 32, 64), Attributes("u8", 32, 64, 32)])
def test_a_row_that_is_not_finite_stays_alone(session_of, attributes):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((5, 64), dtype=np.float32)
    session = session_of(PACKED_LINEAR, attributes, weights_of(attributes, rng), {"x": x})
    clean = session.run(None, {"x": x})[0]
    x[1, 3], x[3, 60] = np.inf, np.nan
    found = session.run(None, {"x": x})[0]
    assert not np.isfinite(found[[1, 3]]).any()
    assert np.array_equal(found[[0, 2, 4]], clean[[0, 2, 4]])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(
    "attributes",
    [
        Attributes("f32", 300, 576),
        Attributes("u8", 320, 576, 32, "silu"),
        Attributes("u4", 300, 576, 32),
    ],
    ids=str,
)  # fmt: skip
def test_a_row_is_the_same_alone_and_in_any_batch(session_of, attributes, threads):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((70, attributes.K), dtype=np.float32)
    weights = weights_of(attributes, rng, scale_type=np.float16)
    session = session_of(PACKED_LINEAR, attributes, weights, {"x": x}, threads)
    together = session.run(None, {"x": x})[0]
    for count in (1, 2, 3, 5, 8, 15, 16, 17, 33, 64):
        for first in (0, 70 - count):
            part = session.run(None, {"x": x[first : first + count]})[0]
            assert np.array_equal(part, together[first : first + count])


@pytest.mark.parametrize("attributes", FORMS, ids=str)
def test_embedding_is_exact(session_of, attributes):
    rng = np.random.default_rng(7)
    ids = np.array([0, attributes.N - 1, 15, 16, 3, 3, attributes.N - 2], dtype=np.int64)
    for mins in (False, True)[: 1 + bool(attributes.block_size)]:
        for scale_type in (np.float16, np.float32):
            weights = weights_of(attributes, rng, mins, scale_type)
            session = session_of(PACKED_EMBEDDING, attributes, weights, {"ids": ids})
            for some in (ids, ids[:1], ids[:0]):
                expected = packed_embedding(attributes, {"ids": some, **weights})
                np.testing.assert_array_equal(session.run(None, {"ids": some})[0], expected)


@pytest.mark.parametrize("wrong", [-1, -40, 40, 47, 48])
def test_ids_outside_the_table_are_refused(session_of, wrong):
    attributes = Attributes("u4", 40, 64, 32)
    weights = weights_of(attributes, np.random.default_rng(8))
    session = session_of(PACKED_EMBEDDING, attributes, weights, {"ids": np.zeros(1, np.int64)})
    with pytest.raises(Exception, match="out of data bounds"):
        session.run(None, {"ids": np.array([1, wrong], dtype=np.int64)})


# ---- several nodes in one model ---------------------------------------------------------------


def mixed_nodes(layers, rng):
    nodes, weights = [], {}
    for i, (attributes, mins, bias) in enumerate(layers):
        given = weights_of(attributes, rng, mins)
        if bias:
            given["bias"] = rng.standard_normal(attributes.N, dtype=np.float32)
        weights.update({f"{n}{i}": a for n, a in given.items()})
        nodes.append(packed_node(PACKED_LINEAR, attributes, given, str(i)))
    return nodes, weights


def run_mixed(layers, options, rename):
    rng = np.random.default_rng(9)
    nodes, weights = mixed_nodes(layers, rng)
    x = rng.standard_normal((3, 256), dtype=np.float32)
    outputs = [f"out{i}" for i in range(len(layers))]
    model = nodes_model(nodes, weights, {"x": x}, outputs, rename)
    results = start(model, options).run(None, {"x": x})
    for i, (attributes, _, _) in enumerate(layers):
        own = {n[: -len(str(i))]: a for n, a in weights.items() if n.endswith(str(i))}
        check_close(results[i], packed_linear(attributes, {"x": x, **own}))
    return model


def test_nodes_of_one_form_share_a_body(options):
    layers = [
        (Attributes("u4", 48, 256, 32), False, True),
        (Attributes("u8", 64, 256, 128, "gelu"), False, False),
        (Attributes("u8", 17, 256, 16), False, True),
    ]
    model = run_mixed(layers, options, rename=False)
    assert [f.name for f in model.functions] == [PACKED_LINEAR]


def test_nodes_of_several_forms_are_renamed(options):
    layers = [
        (Attributes("u4", 48, 256, 32), True, False),
        (Attributes("u8", 64, 256, 128, "silu"), False, True),
        (Attributes("bf16", 32, 256), False, False),
        (Attributes("f32", 32, 256), False, False),
    ]
    model = run_mixed(layers, options, rename=True)
    forms = ("minima", "symmetric", "float")
    assert [f.name for f in model.functions] == [form_name(PACKED_LINEAR, f) for f in forms]
    with pytest.raises(ValueError, match="'n0', 'n1', 'n2' differ in form"):
        run_mixed(layers, options, rename=False)


def test_adding_bodies_twice_leaves_one(options):
    nodes, weights = mixed_nodes([(Attributes("u4", 48, 256, 32), True, False)],
                                 np.random.default_rng(0))  # fmt: skip
    model = nodes_model(nodes, weights, {"x": np.zeros((1, 256), np.float32)}, ["out0"])
    before = model.SerializeToString(deterministic=True)
    add_packed_bodies(model)
    assert model.SerializeToString(deterministic=True) == before


# ---- building ---------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["float", "symmetric", "minima"])
@pytest.mark.parametrize("op", [PACKED_LINEAR, PACKED_EMBEDDING])
def test_bodies_pass_the_checker_at_every_opset(op, form):
    for opset in (18, 21, 23):
        function = packed_function(op, form, opset, name="Own")
        assert (function.domain, function.name) == (DOMAIN, "Own")
        kinds = {node.op_type for node in function.node}
        assert not kinds & {"DynamicQuantizeLinear", "Softplus", "Cos", "Sin"}
    with pytest.raises(ValueError, match="opset 17 is too old"):
        packed_function(op, form, 17)


@pytest.mark.parametrize(
    ("attributes", "scales", "mins", "text"),
    [
        (Attributes("u4", 16, 64, 32), False, False, "needs scales"),
        (Attributes("f32", 16, 64), True, False, "no scales"),
        (Attributes("f32", 16, 64, 32), False, False, "no scales"),
        (Attributes("u5", 16, 64, 32), True, False, "'u5' is unknown"),
        (Attributes("u4", 16, 64, 48), True, False, "block size 48"),
        (Attributes("u4", 16, 80, 16), True, False, "width 80"),
        (Attributes("u8", 16, 96, 64), True, True, "width 96"),
        (Attributes("u8", 48, 64, 32, "silu"), True, False, "N 48"),
        (Attributes("u8", 64, 64, 32, "relu"), True, False, "'relu' is unknown"),
    ],
)
def test_wrong_combinations_are_refused(attributes, scales, mins, text):
    with pytest.raises(ValueError, match=text):
        form_of(attributes, scales, mins)


def test_unknown_attributes_name_the_node():
    node = packed_node(PACKED_LINEAR, Attributes("f32", 16, 64), {"weight"}, name="odd")
    assert node_form(node) == "float"
    node.attribute.append(helper.make_attribute("grup", 3))
    with pytest.raises(ValueError, match=r"node 'odd': .*grup"):
        node_form(node)
