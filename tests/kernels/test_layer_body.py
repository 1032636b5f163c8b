"""The layer's body of standard ops and of the bodies of its parts, without the library."""

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from layer_cases import (
    BF16,
    F16,
    F32,
    U4,
    U8,
    Layer,
    layer_inputs,
    layer_model,
    run_bound_layer,
    with_own_pools,
)

from ortloom.kernels.contract import (
    HEAD_MAJOR_LAYOUT,
    POOLS,
    TOLERANCES,
    PagedAttentionAttributes,
)
from ortloom.kernels.layer_body import add_layer_bodies
from ortloom.kernels.layer_contract import LAYER_OPS, MAX_LAYER_FORMS
from ortloom.kernels.pool_values import widened

VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET, IR_VERSION = (23, 11) if VERSION >= (1, 23) else (21, 10)
REQUESTS = ((0, 5), (37, 1), (63, 2))

PLAIN = PagedAttentionAttributes(4, 2, do_rotary=1, kv_layout=HEAD_MAJOR_LAYOUT)
# Without rounding in between, the two agree to the last digits; one code that falls on the other
# side of a tie is worth a step of its group.
CASES = {
    "f32": (Layer((F32,) * 4), 5e-6),
    "f32, no skip, bias": (Layer((F32,) * 4, skip=False, bias=True, activation="gelu_tanh"), 5e-6),
    "f16": (Layer((F16,) * 4, activation="gelu"), 5e-6),
    "bf16": (Layer((BF16,) * 4), 5e-6),
    "norms, sinks, window": (
        Layer(
            (F32,) * 4,
            dataclasses.replace(PLAIN, local_window_size=19, softcap=9.0, qk_norm_epsilon=0.1),
            features=("norms", "sinks"),
            form=2,
        ),
        5e-6,
    ),
    "u4 and u8": (Layer((U4, U8, U4, U8)), 5e-3),
    "minima, bias": (Layer((("u4", 32, np.float16, True),) * 4, bias=True), 5e-3),
    "f16 pools": (Layer((F32,) * 4, pools="float16"), TOLERANCES["float16"]),
    "bf16 pools": (Layer((F32,) * 4, pools="bfloat16"), TOLERANCES["bfloat16"]),
    "int8 pools": (Layer((F32,) * 4, pools="int8"), TOLERANCES["int8"]),
}


def model_with_body(layer, inputs):
    model = onnx.load_from_string(layer_model(layer, inputs))
    model.ir_version = IR_VERSION
    next(o for o in model.opset_import if o.domain == "").version = OPSET
    add_layer_bodies(model)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def draw(steps, request_of):
    def make(layer, seed=0):
        return layer_inputs(steps, layer, [request_of(*r) for r in REQUESTS], seed)

    return make


@pytest.mark.parametrize("case", CASES)
def test_op_and_body_agree(case, draw, run_layer, options):
    layer, allowed = CASES[case]
    inputs = draw(layer)
    inputs["slot_mapping"][1] = -1
    session = ort.InferenceSession(
        model_with_body(layer, inputs).SerializeToString(),
        options(1),
        providers=["CPUExecutionProvider"],
    )
    got = run_bound_layer(session, with_own_pools(inputs))
    wanted = run_layer(layer, inputs)
    for name, a, b in zip(("y", "sum"), got, wanted, strict=False):
        limit = allowed * float(np.abs(b).max())
        assert float(np.abs(a - b).max()) <= limit, name
    for name, a, b in zip(POOLS, got[2:], wanted[2:], strict=False):
        assert a.dtype == b.dtype
        one, other = widened(a[1:]), widened(b[1:])  # block 0 is nobody's
        if a.dtype == np.int8:
            assert np.abs(one - other).max() <= 1, name
        else:
            assert np.abs(one - other).max() <= allowed * np.abs(other).max(), name


# ---- building -----------------------------------------------------------------------------------


def test_the_model_carries_the_parts_too(draw):
    layer = Layer((U4, F32, U8, ("u4", 32, np.float16, True)))
    model = model_with_body(layer, draw(layer))
    assert sorted(f.name for f in model.functions) == [
        "DecoderLayer",
        "PackedLinearFloat",
        "PackedLinearMinima",
        "PackedLinearSymmetric",
        "PagedAttention",
    ]


def test_adding_bodies_twice_changes_nothing(draw):
    layer = Layer()
    model = model_with_body(layer, draw(layer))
    before = sorted(f.SerializeToString(deterministic=True) for f in model.functions)
    add_layer_bodies(model)
    assert sorted(f.SerializeToString(deterministic=True) for f in model.functions) == before


def test_each_attention_op_has_its_layers():
    assert len(LAYER_OPS) == 4 * MAX_LAYER_FORMS
    assert LAYER_OPS["DecoderLayerInt8_4"] == "PagedAttentionInt8"
    assert LAYER_OPS["DecoderLayer"] == "PagedAttention"


def test_layers_of_one_name_must_agree_in_their_inputs(draw):
    layer = Layer()
    model = model_with_body(layer, draw(layer))
    other = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
    other.input[1] = ""
    model.graph.node.append(other)
    with pytest.raises(ValueError, match="DecoderLayer nodes '' and '' differ"):
        add_layer_bodies(model)


def test_a_part_that_breaks_its_contract_is_refused(draw):
    layer = Layer()
    model = onnx.load_from_string(layer_model(layer, draw(layer)))
    model.opset_import[0].version = OPSET
    next(a for a in model.graph.node[0].attribute if a.name == "o_block_size").i = 48
    with pytest.raises(ValueError, match="block size 48"):
        add_layer_bodies(model)
