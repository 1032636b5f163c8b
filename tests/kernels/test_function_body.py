"""The body of standard ops: agreement with the oracle, binding, and precedence of the op."""

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ortloom.kernels import load
from ortloom.kernels.contract import DOMAIN, INPUTS, OUTPUTS, PAGED_ATTENTION
from ortloom.kernels.contract import PagedAttentionAttributes as Attributes
from ortloom.kernels.function_body import (
    add_paged_attention_body,
    node_attributes,
    paged_attention_function,
    present_inputs,
)
from ortloom.kernels.reference import paged_attention

MIXED = ((0, 5), (37, 1), (16, 19), (63, 2))
VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET, IR_VERSION = (23, 11) if VERSION >= (1, 23) else (21, 10)


def graph_node(attributes, inputs, suffix="", query="query"):
    names = [(n + suffix if "_cache" in n and n[:3] in ("key", "val") else n) for n in INPUTS]
    names = [name if base in inputs else "" for name, base in zip(names, INPUTS, strict=True)]
    names[0] = query
    while not names[-1]:
        names.pop()
    outputs = [name + suffix for name in OUTPUTS]
    return helper.make_node(
        PAGED_ATTENTION, names, outputs, f"layer{suffix}", domain=DOMAIN,
        **dataclasses.asdict(attributes),
    )  # fmt: skip


def value_info(name, array):
    kind = TensorProto.FLOAT if array.dtype == np.float32 else TensorProto.INT32
    return helper.make_tensor_value_info(name, kind, [f"{name}_{i}" for i in range(array.ndim)])


def make_model(layers, inputs, opset=OPSET):
    """Layers one after the other, each on pools of its own; `layers` are attributes."""
    several = len(layers) > 1
    nodes, graph_inputs, graph_outputs, query = [], [], [], "query"
    for i, attributes in enumerate(layers):
        suffix = str(i) if several else ""
        nodes.append(graph_node(attributes, inputs, suffix, query))
        query = f"output{suffix}"
        for name in ("key_cache", "value_cache"):
            graph_inputs.append(value_info(f"{name}{suffix}", inputs[name]))
            graph_outputs.append(value_info(f"{name}_out{suffix}", inputs[name]))
    graph_inputs += [
        value_info(name, array)
        for name, array in inputs.items()
        if name not in ("key_cache", "value_cache")
    ]
    graph_outputs.append(value_info(query, inputs["query"]))
    model = helper.make_model(
        helper.make_graph(nodes, "layers", graph_inputs, graph_outputs),
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=IR_VERSION,
    )
    add_paged_attention_body(model)
    onnx.checker.check_model(model)
    return model


def make_session(model, options, with_library):
    session_options = options(2)
    if with_library:
        load.register(session_options)
    return ort.InferenceSession(
        model.SerializeToString(), session_options, providers=["CPUExecutionProvider"]
    )


@pytest.fixture
def agree(steps, request_of, close, options, bound):
    def check(attributes, requests=MIXED, edit=None, seed=0, **kinds):
        inputs = steps(seed).step(attributes, [request_of(*r) for r in requests], **kinds)
        if edit is not None:
            edit(inputs)
        session = make_session(make_model([attributes], inputs), options, with_library=False)
        # -1 slots write to the null block, which is nobody's data.
        close(bound(session, inputs), paged_attention(attributes, inputs), first_block=1)

    return check


@pytest.mark.parametrize(
    "attributes",
    [
        Attributes(9, 3),
        Attributes(4, 4, scale=0.2),
        Attributes(6, 1, local_window_size=1),
        Attributes(6, 2, local_window_size=17, softcap=3.0),
        Attributes(6, 2, is_causal=0),
        Attributes(6, 2, is_causal=0, local_window_size=9),
    ],
)
def test_attributes(agree, attributes):
    agree(attributes)
    agree(attributes, sinks=True)


@pytest.mark.parametrize(("head_size", "block_size"), [(80, 48), (128, 32), (256, 256)])
def test_sizes(agree, head_size, block_size):
    agree(Attributes(6, 2), head_size=head_size, block_size=block_size)


@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize(("offset", "half"), [(0, 32), (0, 12), (8, 16), (40, 1)])
def test_rotary_and_norm(agree, interleaved, offset, half):
    attributes = Attributes(
        6, 2, do_rotary=1, rotary_interleaved=interleaved, rotary_offset=offset, qk_norm_epsilon=0.1
    )
    agree(attributes, rotary_half=half)
    agree(attributes, rotary_half=half, norms=True)


def test_rotary_tables_without_do_rotary_change_nothing(agree):
    def tables(inputs):
        inputs["cos_cache"] = np.full((1, 32), 9.0, dtype=np.float32)
        inputs["sin_cache"] = np.full((1, 32), 9.0, dtype=np.float32)

    agree(Attributes(6, 2), edit=tables)


def test_minus_one_slots_and_table_entries(agree):
    def punch(inputs):
        inputs["slot_mapping"][::3] = -1
        inputs["block_table"][1, 0] = -1
        inputs["key_cache"][0] = np.nan
        inputs["value_cache"][0] = np.nan

    agree(Attributes(6, 2), edit=punch)
    agree(Attributes(6, 2, local_window_size=8, softcap=2.0), edit=punch, sinks=True)


def test_requests_without_tokens(agree):
    agree(Attributes(6, 2), requests=((0, 0), (4, 2), (9, 0), (1, 1)))


def test_defaults_of_missing_attributes(steps, request_of, close, options, bound):
    attributes = Attributes(6, 2)
    inputs = steps(0).step(attributes, [request_of(0, 5)])
    model = make_model([attributes], inputs)
    node = model.graph.node[0]
    for item in [a for a in node.attribute if "num_heads" not in a.name]:
        node.attribute.remove(item)
    assert node_attributes(node) == attributes
    session = make_session(model, options, with_library=False)
    close(bound(session, inputs), paged_attention(attributes, inputs), first_block=1)


@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    window=st.one_of(st.just(-1), st.integers(1, 80)),
    softcap=st.sampled_from([0.0, 4.0]),
    causal=st.integers(0, 1),
    sinks=st.booleans(),
    requests=st.lists(st.tuples(st.integers(0, 90), st.integers(1, 20)), min_size=1, max_size=4),
)
def test_drawn_nodes(agree, window, softcap, causal, sinks, requests):
    attributes = Attributes(6, 2, local_window_size=window, softcap=softcap, is_causal=causal)
    agree(attributes, requests, sinks=sinks)


# ---- several layers, the op's precedence, binding --------------------------------------------

LAYERS = [
    Attributes(6, 2, local_window_size=8),
    Attributes(6, 2, do_rotary=1, softcap=4.0),
    Attributes(6, 2, do_rotary=1, rotary_interleaved=1, scale=0.3),
]


def run_layers(session, inputs, layers):
    arrays = {
        f"{name}{i}": inputs[name].copy()
        for i in range(len(layers))
        for name in ("key_cache", "value_cache")
    }
    others = {n: a for n, a in inputs.items() if n not in ("key_cache", "value_cache")}
    binding = session.io_binding()
    for name, array in {**arrays, **others}.items():
        value = ort.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(name, value)
        if name in arrays:
            binding.bind_ortvalue_output(f"{name[:-1]}_out{name[-1]}", value)
    output = np.empty_like(inputs["query"])
    name = f"output{len(layers) - 1}"
    binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(output))
    session.run_with_iobinding(binding)
    return output, arrays


@pytest.mark.parametrize("with_library", [False, True])
def test_layers_may_differ_in_every_attribute(steps, request_of, options, with_library):
    inputs = steps(2).step(LAYERS[1], [request_of(*r) for r in MIXED])
    model = make_model(LAYERS, inputs)
    assert len(model.functions) == 1
    session = make_session(model, options, with_library)
    output, arrays = run_layers(session, inputs, LAYERS)
    expected = dict(inputs)
    for i, attributes in enumerate(LAYERS):
        result = paged_attention(attributes, expected)
        expected["query"] = result.output
        for name in ("key_cache", "value_cache"):
            wanted = getattr(result, name)
            assert np.abs(arrays[f"{name}{i}"] - wanted).max() <= 5e-6 * np.abs(wanted).max()
    assert np.abs(output - expected["query"]).max() <= 5e-6 * np.abs(expected["query"]).max()


def test_a_registered_op_is_preferred_to_the_body(steps, request_of, options):
    # The op insists on bound pools and says so; the body returns fresh ones.
    inputs = steps(0).step(Attributes(6, 2), [request_of(0, 3)])
    model = make_model([Attributes(6, 2)], inputs)
    with pytest.raises(Exception, match="bind one OrtValue"):
        make_session(model, options, with_library=True).run(None, inputs)
    make_session(model, options, with_library=False).run(None, inputs)


def test_without_library_and_body_the_session_fails(steps, request_of, options):
    inputs = steps(0).step(Attributes(6, 2), [request_of(0, 3)])
    model = make_model([Attributes(6, 2)], inputs)
    del model.functions[:]
    with pytest.raises(Exception, match="PagedAttention"):
        make_session(model, options, with_library=False)


def test_pools_bound_in_place_and_fresh_pools_agree(steps, request_of, options, bound):
    attributes = Attributes(6, 2)
    inputs = steps(5).step(attributes, [request_of(*r) for r in MIXED])
    session = make_session(make_model([attributes], inputs), options, with_library=False)
    output, key_pool, value_pool = bound(session, inputs)
    fresh = dict(
        zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True)
    )
    assert np.array_equal(output, fresh["output"])
    assert np.array_equal(key_pool, fresh["key_cache_out"])
    assert np.array_equal(value_pool, fresh["value_cache_out"])
    assert not np.array_equal(key_pool, inputs["key_cache"])


def test_a_request_is_the_same_alone_and_in_a_batch(steps, request_of, options, bound):
    attributes = Attributes(6, 2)
    inputs = steps(6).step(attributes, [request_of(*r) for r in MIXED])
    session = make_session(make_model([attributes], inputs), options, with_library=False)
    together, *_ = bound(session, inputs)
    cu = inputs["cumulative_sequence_length"]
    for r, (_, added) in enumerate(MIXED):
        rows = slice(cu[r], cu[r + 1])
        alone = {
            **inputs,
            **{n: inputs[n][rows] for n in ("query", "key", "value", "slot_mapping")},
            **{n: inputs[n][r : r + 1] for n in ("past_seqlens", "block_table")},
            "cumulative_sequence_length": np.array([0, added], dtype=np.int32),
        }
        single, *_ = bound(session, alone)
        assert np.array_equal(together[rows], single)


# ---- building ---------------------------------------------------------------------------------


def test_the_body_passes_the_checker_at_every_opset(steps, request_of):
    inputs = steps(0).step(
        Attributes(6, 2, do_rotary=1), [request_of(0, 3)], sinks=True, norms=True
    )
    for opset in (18, 21, 23):
        make_model([Attributes(6, 2, do_rotary=1)], inputs, opset)


def test_nodes_must_agree_in_their_inputs(steps, request_of):
    inputs = steps(0).step(Attributes(6, 2), [request_of(0, 3)])
    model = make_model([Attributes(6, 2), Attributes(6, 2)], inputs)
    model.graph.node[1].input.append("head_sink")
    with pytest.raises(ValueError, match="'layer0', 'layer1' differ in their optional inputs"):
        add_paged_attention_body(model)


REQUIRED = tuple(
    name not in ("cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight",
                 "k_scale", "v_scale", "attention_metadata")
    for name in INPUTS
)  # fmt: skip


def with_input(*names):
    return tuple(flag or name in names for flag, name in zip(REQUIRED, INPUTS, strict=True))


def without_input(name):
    return tuple(flag and name != other for flag, other in zip(REQUIRED, INPUTS, strict=True))


@pytest.mark.parametrize(
    ("attributes", "present", "opset", "text"),
    [
        (Attributes(6, 2), with_input("k_scale"), 23, "k_scale is of int8 pools only"),
        (Attributes(6, 2), with_input("q_norm_weight"), 23, "given together"),
        (Attributes(6, 2), with_input("cos_cache"), 23, "given together"),
        (Attributes(6, 2), without_input("value"), 23, "key and value must be given together"),
        (Attributes(6, 2, do_rotary=1), REQUIRED, 23, "do_rotary = 1 needs"),
        (Attributes(6, 2), with_input("attention_metadata"), 23, "attention_metadata is reserved"),
        (Attributes(6, 2, kv_layout="NB,H"), REQUIRED, 23, "'NB,H' is not supported by Paged"),
        (Attributes(6, 4), REQUIRED, 23, "multiple of kv_num_heads"),
        (Attributes(6, 2, local_window_size=0), REQUIRED, 23, "local_window_size"),
        (Attributes(6, 2), REQUIRED, 17, "opset 17 is too old"),
        (Attributes(6, 2), REQUIRED[:-1], 23, "16 flags for 17 inputs"),
    ],
)
def test_wrong_combinations_are_refused(attributes, present, opset, text):
    with pytest.raises(ValueError, match=text):
        paged_attention_function(attributes, present, opset)


def test_name_and_unknown_attributes():
    function = paged_attention_function(Attributes(6, 2), REQUIRED, name="PagedAttentionPlain")
    assert (function.domain, function.name) == (DOMAIN, "PagedAttentionPlain")
    node = helper.make_node(PAGED_ATTENTION, ["query"], ["output"], "odd", domain=DOMAIN, windw=3)
    assert present_inputs(node) == (True, *[False] * (len(INPUTS) - 1))
    with pytest.raises(ValueError, match=r"node 'odd': .*windw"):
        node_attributes(node)


# ---- ONNX Runtime's own window convention -----------------------------------------------------


@pytest.mark.parametrize("window", [1, 2, 5])
def test_window_convention_of_onnxruntime(window, options):
    """com.microsoft's local_window_size (GroupQueryAttention, CPU) counts the token itself from
    1.24 on, as ours does: a rename to com.microsoft keeps the number. Before, it counted the
    tokens to the left."""
    tokens, size = 12, 16
    info = helper.make_tensor_value_info
    node = helper.make_node(
        "GroupQueryAttention",
        ["query", "key", "value", "", "", "last", "total"],
        ["output", "present_key", "present_value"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
        local_window_size=window,
    )
    floats, ints = TensorProto.FLOAT, TensorProto.INT32
    graph = helper.make_graph(
        [node],
        "window",
        [info(n, floats, [1, tokens, size]) for n in ("query", "key", "value")]
        + [info("last", ints, [1]), info("total", ints, [1])],
        [info("output", floats, None)],
    )
    node.output[:] = ["output", "present_key", "present_value"]
    graph.output.extend(
        info(n, floats, [1, 1, tokens, size]) for n in ("present_key", "present_value")
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)],
        ir_version=IR_VERSION,
    )
    session = ort.InferenceSession(
        model.SerializeToString(), options(1), providers=["CPUExecutionProvider"]
    )
    zeros = np.zeros((1, tokens, size), dtype=np.float32)
    value = zeros.copy()
    value[0] = np.eye(tokens, size)
    last, total = np.array([tokens - 1], np.int32), np.array([tokens], np.int32)
    feeds = {"query": zeros, "key": zeros, "value": value, "last": last, "total": total}
    output = session.run(["output"], feeds)[0]
    seen = output[0, :, :tokens] > 0
    i, j = np.indices(seen.shape)
    reach = window if VERSION >= (1, 24) else window + 1
    assert np.array_equal(seen, (j <= i) & (i - j < reach))
