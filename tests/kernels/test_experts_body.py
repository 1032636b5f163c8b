"""The bodies of PackedExperts and ExpertRouting under plain ONNX Runtime, against the oracle."""

import dataclasses

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from expert_cases import FORMS, U4, case, experts_of, form_id, routes, rows_of
from onnx import TensorProto, helper
from packed_cases import check, draw

from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.experts_body import (
    add_experts_bodies,
    experts_forms,
    experts_function,
    routing_function,
)
from ortloom.kernels.experts_contract import (
    EXPERT_ROUTING,
    EXPERTS_INPUTS,
    PACKED_EXPERTS,
    RoutingAttributes,
)
from ortloom.kernels.experts_reference import expert_routing, packed_experts

VERSION = tuple(int(part) for part in ort.__version__.split(".")[:2])
OPSET, IR_VERSION = (23, 10) if VERSION >= (1, 23) else (21, 10)
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "uint16": TensorProto.BFLOAT16,
    "uint8": TensorProto.UINT8,
    "int64": TensorProto.INT64,
}
ROWS = ("x", "ids", "weights", "logits")


def experts_node(attributes, inputs, suffix=""):
    names = [
        name if name in ROWS else name + suffix if name in inputs else "" for name in EXPERTS_INPUTS
    ]
    while not names[-1]:
        names.pop()
    facts = dataclasses.asdict(attributes)
    return helper.make_node(
        PACKED_EXPERTS, names, [f"y{suffix}"], f"n{suffix}", domain=DOMAIN, **facts
    )


def model_of(nodes, rows, constants, outputs, rename=False):
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "experts",
        [info(n, TYPES[a.dtype.name], ["T", *a.shape[1:]]) for n, a in rows.items()],
        [info(name, kind, ["T", f"{name}_width"]) for name, kind in outputs.items()],
        [
            helper.make_tensor(n, TYPES[a.dtype.name], a.shape, a.tobytes(), raw=True)
            for n, a in constants.items()
        ],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    add_experts_bodies(model, rename)
    onnx.checker.check_model(model)
    return model


def split(inputs):
    rows = {name: inputs[name] for name in ROWS if name in inputs}
    return rows, {name: array for name, array in inputs.items() if name not in rows}


@pytest.fixture
def session_of(options):
    def make(attributes, inputs, threads=1):
        rows, constants = split(inputs)
        nodes = [experts_node(attributes, inputs)]
        model = model_of(nodes, rows, constants, {"y": TensorProto.FLOAT})
        return start(model, options(threads))

    return make


def start(model, options):
    return ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(session, inputs, rows):
    return session.run(None, split(rows_of(inputs, rows))[0])[0]


@pytest.mark.parametrize("form", FORMS, ids=form_id)
def test_agrees_with_the_oracle(session_of, form):
    attributes, inputs = case(form, 40)
    session = session_of(attributes, inputs)
    wanted = packed_experts(attributes, inputs)
    for count in (1, 2, 7, 40):
        check(run(session, inputs, slice(0, count)), wanted[:count])
    assert run(session, inputs, slice(0, 0)).shape == (0, attributes.K)


def test_weights_of_experts_that_no_token_names_do_not_matter(session_of):
    attributes, inputs = case((U4, U4, "silu"), 12)
    inputs["ids"] %= 3
    wanted = run(session_of(attributes, inputs), inputs, slice(None))
    for name in ("gate_up_scales", "down_scales"):
        inputs[name][3:] = np.nan
    np.testing.assert_array_equal(run(session_of(attributes, inputs), inputs, slice(None)), wanted)


@pytest.mark.parametrize("wrong", [-1, 8])
def test_ids_outside_the_experts_are_refused(session_of, wrong):
    attributes, inputs = case(FORMS[0], 3)
    session = session_of(attributes, inputs)
    inputs["ids"][1, 1] = wrong
    with pytest.raises(Exception, match="out of data bounds"):
        run(session, inputs, slice(None))


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", [FORMS[0], FORMS[4]], ids=form_id)
def test_a_token_is_the_same_alone_and_in_any_batch(session_of, form, threads):
    attributes, given = experts_of(form, width=256, inner=192)
    inputs = {"x": draw(60, 256), **routes(60), **given}
    session = session_of(attributes, inputs, threads)
    whole = run(session, inputs, slice(None))
    for count in (1, 2, 3, 8, 17, 33, 59):
        for rows in (slice(0, count), slice(60 - count, 60)):
            np.testing.assert_array_equal(run(session, inputs, rows), whole[rows])


@pytest.mark.parametrize("normalize", [0, 1])
def test_routing_agrees_with_the_oracle_and_is_the_same_in_any_batch(options, normalize):
    attributes = RoutingAttributes(4, normalize)
    logits = np.random.default_rng(1).standard_normal((70, 60), np.float32) * 3
    logits[3] = 0
    logits[5, 7] = np.nan
    node = helper.make_node(
        EXPERT_ROUTING, ["logits"], ["ids", "weights"], domain=DOMAIN,
        **dataclasses.asdict(attributes),
    )  # fmt: skip
    outputs = {"ids": TensorProto.INT64, "weights": TensorProto.FLOAT}
    session = start(model_of([node], {"logits": logits}, {}, outputs), options(2))
    ids, weights = session.run(None, {"logits": logits})
    wanted = expert_routing(attributes, {"logits": logits})
    np.testing.assert_array_equal(ids, wanted[0])
    np.testing.assert_allclose(weights, wanted[1], rtol=1e-6)
    for begin, end in ((0, 0), (0, 1), (4, 6), (1, 18), (3, 70)):
        part = session.run(None, {"logits": logits[begin:end]})
        np.testing.assert_array_equal(part[0], ids[begin:end])
        np.testing.assert_array_equal(part[1], weights[begin:end])


def test_nodes_of_several_forms_are_renamed(options):
    layers = [case(FORMS[0], 6), case(FORMS[2], 6), case(FORMS[4], 6)]
    rows, constants, nodes = {}, {}, []
    for i, (attributes, inputs) in enumerate(layers):
        rows, given = split(inputs if i == 0 else {**inputs, **rows})
        nodes.append(experts_node(attributes, inputs, str(i)))
        constants |= {f"{name}{i}": array for name, array in given.items()}
    outputs = {f"y{i}": TensorProto.FLOAT for i in range(3)}
    model = model_of(nodes, rows, constants, outputs, rename=True)
    forms = ("SymmetricSymmetric", "MinimaMinima", "FloatFloat")
    assert [f.name for f in model.functions] == [PACKED_EXPERTS + form for form in forms]
    got = start(model, options()).run(None, rows)
    check(got[0], packed_experts(layers[0][0], layers[0][1]))
    check(got[2], packed_experts(layers[2][0], {**layers[2][1], **rows}))
    again = model.SerializeToString(deterministic=True)
    for node in model.graph.node:
        node.op_type = PACKED_EXPERTS
    with pytest.raises(ValueError, match="'n0', 'n1', 'n2' differ in form"):
        add_experts_bodies(model)
    add_experts_bodies(model, rename=True)
    assert model.SerializeToString(deterministic=True) == again


def test_bodies_pass_the_checker_at_every_opset():
    for opset in (18, 21, 23):
        for function in (routing_function(opset), experts_function(("symmetric", "float"), opset)):
            assert function.domain == DOMAIN
            kinds = {node.op_type for node in function.node}
            assert not kinds & {"DynamicQuantizeLinear", "Softplus", "Cos", "Sin", "ReduceSum"}
    with pytest.raises(ValueError, match="opset 17 is too old"):
        experts_function(("float", "float"), 17)
    with pytest.raises(ValueError, match="opset 17 is too old"):
        routing_function(17)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"gate_up_block_size": 0}, "block size 0"),
        ({"down_format": "f32", "down_block_size": 0}, "format f32 has no scales"),
        ({"down_format": "u5"}, "'u5' is unknown"),
        ({"activation": ""}, "activation is empty"),
        ({"activation": "relu"}, "'relu' is unknown"),
        ({"I": 104}, "N 208"),
    ],
)
def test_wrong_combinations_name_the_node(change, text):
    attributes, inputs = case(FORMS[0], 2)
    node = experts_node(dataclasses.replace(attributes, **change), inputs)
    with pytest.raises(ValueError, match=f"node 'n': .*{text}"):
        experts_forms(node)
