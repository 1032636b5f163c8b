"""The bodies of all four attention ops in every layout they take, against the oracle."""

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from ortloom.kernels.contract import (
    HEAD_MAJOR_LAYOUT,
    INPUTS,
    OP_POOLS,
    POOL_OPS,
    POOLS,
    layouts_of,
    outputs_of,
)
from ortloom.kernels.contract import PagedAttentionAttributes as Attributes
from ortloom.kernels.function_body import add_paged_attention_body, paged_attention_function
from ortloom.kernels.pool_layout import as_stored, by_token
from ortloom.kernels.pool_values import (
    bfloat16_bits,
    element_type,
    from_bfloat16,
    quantise,
)
from ortloom.kernels.probe_model import paged_attention_model
from ortloom.kernels.reference import paged_attention

MIXED = ((0, 5), (37, 1), (16, 19), (63, 2))
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET, IR_VERSION = (23, 11) if VERSION >= (1, 23) else (21, 10)
NAMES = {"bfloat16": "bf16"}
FORMS = [
    pytest.param(pools, layout, id=f"{NAMES.get(pools, pools)}-{where}")
    for op, pools in OP_POOLS.items()
    for layout in layouts_of(op)
    for where in ("head-major" if layout == HEAD_MAJOR_LAYOUT else "canonical",)
]


def model_with_body(attributes, inputs):
    pools = element_type(inputs["key_cache"])
    model = onnx.load_from_string(paged_attention_model(attributes, tuple(inputs), pools))
    model.ir_version = IR_VERSION
    next(o for o in model.opset_import if o.domain == "").version = OPSET
    add_paged_attention_body(model)
    onnx.checker.check_model(model)
    return model


@pytest.fixture
def agree(steps, request_of, close, options, bound, pack):
    def check(attributes, form, requests=MIXED, edit=None, packed=False, **kinds):
        pools, layout = form
        attributes = dataclasses.replace(attributes, kv_layout=layout)
        made = [request_of(*r) for r in requests]
        inputs = steps(0).step(attributes, made, pools=pools, **kinds)
        if edit is not None:
            edit(inputs)
        expected = paged_attention(attributes, inputs)
        if packed:
            inputs = pack(inputs)
        model = model_with_body(attributes, inputs)
        session = ort.InferenceSession(
            model.SerializeToString(), options(2), providers=["CPUExecutionProvider"]
        )
        close(bound(session, inputs), expected, first_block=1)

    return check


@pytest.mark.parametrize(("pools", "layout"), FORMS)
def test_features(agree, pools, layout):
    form = (pools, layout)
    agree(Attributes(9, 3), form)
    agree(Attributes(4, 4, local_window_size=17, softcap=3.0), form, sinks=True, block_size=32)
    agree(Attributes(6, 2, do_rotary=1, qk_norm_epsilon=0.1), form, norms=True, packed=True)
    agree(Attributes(6, 1, is_causal=0, scale=0.2), form, head_size=80, block_size=48)
    agree(Attributes(2, 2), form, head_size=256, requests=((0, 0), (4, 2), (9, 0)))


@pytest.mark.parametrize(("pools", "layout"), FORMS)
def test_minus_one_slots_and_table_entries(agree, pools, layout):
    def punch(inputs):
        inputs["slot_mapping"][::3] = -1
        inputs["block_table"][1, 0] = -1
        for name in POOLS:
            if name in inputs and inputs[name].dtype != np.int8:
                odd = 0x7FC0 if inputs[name].dtype == np.uint16 else np.nan
                inputs[name][0] = odd

    agree(Attributes(6, 2, softcap=2.0), (pools, layout), edit=punch, sinks=True)


def test_tokens_of_zeros_have_scale_zero(steps, request_of, options, bound):
    attributes = Attributes(6, 2, kv_layout=HEAD_MAJOR_LAYOUT)
    inputs = steps(1).step(attributes, [request_of(0, 4)], pools="int8")
    inputs["key"][1] = 0
    inputs["value"][2] = 0
    inputs["value"][3] = 1e-31
    session = ort.InferenceSession(
        model_with_body(attributes, inputs).SerializeToString(),
        options(1),
        providers=["CPUExecutionProvider"],
    )
    output, *pools = bound(session, inputs)
    assert np.isfinite(output).all()
    block = inputs["slot_mapping"][0] // 16
    for name, pool, token in (("k_scale", pools[2], 1), ("v_scale", pools[3], 2)):
        scales = by_token(name, pool, HEAD_MAJOR_LAYOUT)[block, :4]
        assert (scales[token] == 0).all()
        assert (np.delete(scales, token, 0) > 0).all()


@pytest.mark.parametrize("pools", [pytest.param(p, id=NAMES.get(p, p)) for p in POOL_OPS])
def test_the_oracles_pools_in_token_order_do_not_depend_on_the_layout(steps, request_of, pools):
    """What is stored at a token's place, and what comes out, of the same data in both orders."""
    attributes = Attributes(6, 2, kv_layout=HEAD_MAJOR_LAYOUT)
    inputs = steps(3).step(attributes, [request_of(*r) for r in MIXED], pools=pools)
    got = paged_attention(attributes, inputs)
    slots = inputs["slot_mapping"]
    for name, given in (("key_cache", inputs["key"]), ("value_cache", inputs["value"])):
        stored = by_token(name, getattr(got, name), HEAD_MAJOR_LAYOUT).reshape(-1, 2, 64)[slots]
        x = given.reshape(-1, 2, 64)
        if pools == "int8":
            scales = name[0] + "_scale"
            scale = by_token(scales, getattr(got, scales), HEAD_MAJOR_LAYOUT).reshape(-1, 2)[slots]
            assert np.abs(stored * scale[..., None] - x).max() <= scale.max() * 0.501
        else:
            wide = from_bfloat16(stored) if pools == "bfloat16" else stored
            assert np.abs(wide - x).max() <= np.abs(x).max() * 2.0**-8
    if pools == "float32":
        plain = {n: by_token(n, a, HEAD_MAJOR_LAYOUT) if n in POOLS else a
                 for n, a in inputs.items()}  # fmt: skip
        again = paged_attention(Attributes(6, 2), plain)
        assert np.array_equal(got.output, again.output)
        key_cache = as_stored("key_cache", again.key_cache, HEAD_MAJOR_LAYOUT)
        assert np.array_equal(got.key_cache, key_cache)


def test_the_head_major_order_is_the_contracts():
    """Element by element against the orders that the contract writes."""
    blocks, size, heads, width = 2, 32, 3, 5
    key = np.arange(blocks * size * heads * width).reshape(blocks, size, heads, width)
    flat = as_stored("key_cache", key, HEAD_MAJOR_LAYOUT).reshape(
        blocks, heads, size // 16, width, 16
    )
    value = as_stored("value_cache", key, HEAD_MAJOR_LAYOUT).reshape(blocks, heads, size, width)
    scale = as_stored("k_scale", key[..., 0], HEAD_MAJOR_LAYOUT).reshape(blocks, heads, size)
    for block, place, head, channel in np.ndindex(key.shape):
        wanted = key[block, place, head, channel]
        assert flat[block, head, place // 16, channel, place % 16] == wanted
        assert value[block, head, place, channel] == wanted
        if channel == 0:
            assert scale[block, head, place] == wanted


def test_bf16_rounding_is_to_nearest_even():
    x = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF817FFF, 0], np.uint32).view(np.float32)
    assert list(bfloat16_bits(x)) == [0x3F80, 0x3F82, 0x3F81, 0xBF81, 0]


def test_int8_rounding_is_half_to_even_with_one_scale_a_head():
    x = np.array([[127.0, 0.5, 1.5, -2.5, -127.0], [0.0] * 5, [1e-31] * 5], np.float32)
    codes, scales = quantise(x)
    assert codes.tolist() == [[127, 0, 2, -2, -127], [0] * 5, [0] * 5]
    assert scales[:2].tolist() == [1.0, 0.0]


# ---- building --------------------------------------------------------------------------------


def present(*extra):
    optional = ("cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight",
                "k_scale", "v_scale", "attention_metadata")  # fmt: skip
    return tuple(name not in optional or name in extra for name in INPUTS)


@pytest.mark.parametrize(
    ("pools", "attributes", "given", "text"),
    [
        ("float16", Attributes(6, 2), (), "'NB,BS,H,D' is not supported by PagedAttentionFloat16"),
        ("int8", Attributes(6, 2), ("k_scale", "v_scale"), "not supported by PagedAttentionInt8"),
        ("int8", Attributes(6, 2, kv_layout=HEAD_MAJOR_LAYOUT), (), "k_scale is needed with int8"),
        (
            "float16",
            Attributes(6, 2, kv_layout=HEAD_MAJOR_LAYOUT),
            ("v_scale",),
            "v_scale is of int8 pools only; it cannot be given with float16 pools",
        ),
    ],
)
def test_wrong_combinations_are_refused(pools, attributes, given, text):
    with pytest.raises(ValueError, match=text):
        paged_attention_function(attributes, present(*given), pools=pools)


def test_each_op_has_a_body_of_its_own_name_and_outputs():
    for op, pools in OP_POOLS.items():
        scales = ("k_scale", "v_scale") if pools == "int8" else ()
        function = paged_attention_function(
            Attributes(6, 2, kv_layout=HEAD_MAJOR_LAYOUT), present(*scales), pools=pools
        )
        assert function.name == op
        assert tuple(function.output) == outputs_of(op)
        # Nothing may read a whole pool but the write in place and the gather of blocks.
        pool_names = {*POOLS, *(f"{name}_out" for name in POOLS)}
        readers = {n.op_type for n in function.node if pool_names & set(n.input)}
        assert readers <= {"ScatterND", "Shape"}


def test_nodes_of_one_name_must_agree_in_layout(steps, request_of):
    inputs = steps(0).step(Attributes(6, 2), [request_of(0, 3)])
    model = model_with_body(Attributes(6, 2), inputs)
    other = onnx.NodeProto.FromString(model.graph.node[0].SerializeToString())
    next(a for a in other.attribute if a.name == "kv_layout").CopyFrom(
        helper.make_attribute("kv_layout", HEAD_MAJOR_LAYOUT)
    )
    model.graph.node.append(other)
    with pytest.raises(ValueError, match="differ in their kv_layout"):
        add_paged_attention_body(model)
