"""The bodies of `ortloom::ExpertRouting` and `ortloom::PackedExperts` out of standard ONNX ops.

As in `packed_body`, attributes are read through references, and there is one body for each
combination of the forms of the two kinds of matrices; the nodes of a model that has several are
renamed by them ("PackedExpertsSymmetricFloat": gate and up projection, then down projection).

PackedExperts is a Loop over the experts that some token names, in ascending order. Each turn takes
one expert's panels out of the weights, unpacks them and multiplies the rows that go to it, so the
memory is that of one expert in fp32 and weights of other experts are not read. What the experts
give is kept by slot and added up at the end with CumSum, which adds from the first slot to the
last.

Numbers: the op's within 5e-6 of the largest output, but for rounded inner activations that lie so
near the middle between two integers that the last digit decides.
"""

from dataclasses import fields
from typing import Any

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.experts_contract import (
    EXPERT_ROUTING,
    EXPERTS_INPUTS,
    EXPERTS_OUTPUTS,
    PACKED_EXPERTS,
    ROUTING_INPUTS,
    ROUTING_OUTPUTS,
    ExpertsAttributes,
    RoutingAttributes,
)
from ortloom.kernels.packed_body import DEFAULT_OPSET, MIN_OPSET, form_of
from ortloom.kernels.packed_product_body import Form, Operands, gate_times_up, product

Forms = tuple[Form, Form]
"""Of the gate and up projections, and of the down projections."""

_REQUIRED = ("experts", "K", "I", "gate_up_format", "down_format")


def _routing() -> list[onnx.NodeProto]:
    b = BodyBuilder()
    tokens, count = b.dim("logits", 0), b.integers("top_k")
    # A row of zeros is appended and dropped again: ONNX Runtime up to 1.23 divides by the rows.
    row = b.op("Expand", b.number(0.0), b.concat(b.ints(1), b.dim("logits", 1)))
    logits = b.concat("logits", row)
    ranks = b.op("Where", b.op("IsNaN", logits), b.number(float("-inf")), logits)
    b.nodes.append(helper.make_node("TopK", [ranks, count], ["largest", "chosen"], axis=-1))
    shares = b.op("GatherElements", b.op("Softmax", logits, axis=-1), "chosen", axis=1)
    # CumSum adds in order; the order of ReduceSum may depend on the number of rows.
    sums = b.op("CumSum", shares, b.integer(1))
    total = b.op("Gather", sums, b.op("Sub", count, b.ints(1)), axis=1)
    normalise = b.op("Equal", b.integers("normalize"), b.ints(1))
    weights = b.op("Div", shares, b.op("Where", normalise, total, b.number(1.0)))
    for name, rows in (("ids", "chosen"), ("weights", weights)):
        b.op("Identity", b.slice(rows, b.ints(0), tokens), out=name)
    return b.nodes


def _expert(b: BodyBuilder, kind: str, form: Form, number: str) -> Operands:
    """The operands of one expert."""

    def part(name: str) -> str:
        return b.op("Gather", name, number, axis=0)

    return Operands(
        weight=part(kind),
        scales=part(f"{kind}_scales") if form != "float" else "",
        mins=part(f"{kind}_mins") if form == "minima" else "",
        format=f"{kind}_format",
        block_size=f"{kind}_block_size",
        prefix=f"{kind}_",
    )


def _experts(forms: Forms) -> list[onnx.NodeProto]:
    b = BodyBuilder()
    width, inner = b.integers("K"), b.integers("I")
    both = b.op("Mul", inner, b.ints(2))
    tokens, slots = b.dim("x", 0), b.dim("ids", 1)
    pairs = b.op("Mul", tokens, slots)
    experts = b.integers("experts")
    # Gather would take -1 as the last expert; E is refused.
    ids = b.op("Where", b.op("Less", "ids", b.ints(0)), experts, "ids")
    ids = b.reshape(b.op("Gather", b.count_to(experts), ids), pairs)
    routed = b.op("Unique", ids)
    token = b.op("Div", b.count_to(pairs), slots)
    start = b.op("Expand", b.number(0.0), b.concat(pairs, width))

    each = BodyBuilder("each_")
    number = each.op("Gather", routed, "turn", axis=0)
    places = each.op("NonZero", each.op("Equal", ids, number))
    places = each.reshape(places, each.ints(-1))
    rows = each.op("Gather", "x", each.op("Gather", token, places), axis=0)
    gate_up = _expert(each, "gate_up", forms[0], number)
    hidden = gate_times_up(each, product(each, rows, gate_up, forms[0], both, width), both)
    given = product(each, hidden, _expert(each, "down", forms[1], number), forms[1], width, inner)
    each.op("ScatterND", "held", each.unsqueeze(places, 1), given, out="then_held")
    each.op("Identity", "going", out="still_going")
    info = helper.make_tensor_value_info
    loop = helper.make_graph(
        each.nodes,
        "expert",
        [
            info("turn", TensorProto.INT64, []),
            info("going", TensorProto.BOOL, []),
            info("held", TensorProto.FLOAT, None),
        ],
        [info("still_going", TensorProto.BOOL, []), info("then_held", TensorProto.FLOAT, None)],
    )
    turns = b.op("Squeeze", b.dim(routed, 0))
    by_pair = b.op("Loop", turns, "", start, body=loop)
    by_slot = b.reshape(by_pair, tokens, slots, width)
    sums = b.op("CumSum", b.op("Mul", by_slot, b.unsqueeze("weights", 2)), b.integer(1))
    last = b.op("Gather", sums, b.op("Sub", slots, b.ints(1)), axis=1)
    b.op("Squeeze", last, b.ints(1), out="y")
    return b.nodes


def routing_function(opset: int = DEFAULT_OPSET, name: str = EXPERT_ROUTING) -> onnx.FunctionProto:
    """The body of ExpertRouting, for nodes of any attributes.

    Raises:
        ValueError: the opset is too old.
    """
    _require_opset(opset)
    default = helper.make_attribute("normalize", RoutingAttributes(1).normalize)
    return helper.make_function(
        DOMAIN, name, list(ROUTING_INPUTS), list(ROUTING_OUTPUTS), _routing(),
        [helper.make_opsetid("", opset)], attributes=["top_k"], attribute_protos=[default],
    )  # fmt: skip


def experts_function(
    forms: Forms, opset: int = DEFAULT_OPSET, name: str = PACKED_EXPERTS
) -> onnx.FunctionProto:
    """The body of PackedExperts for nodes of these forms, whatever their attributes.

    Args:
        forms: see `experts_forms`.
        opset: of the standard ops, 18 or newer; the model's own.
        name: of the function; the op's by default, which lets a registered op override it.

    Raises:
        ValueError: the opset is too old.
    """
    _require_opset(opset)
    defaults = [
        helper.make_attribute(field.name, field.default)
        for field in fields(ExpertsAttributes)
        if field.name not in _REQUIRED
    ]
    return helper.make_function(
        DOMAIN, name, list(EXPERTS_INPUTS), list(EXPERTS_OUTPUTS), _experts(forms),
        [helper.make_opsetid("", opset)], attributes=list(_REQUIRED), attribute_protos=defaults,
    )  # fmt: skip


def _require_opset(opset: int) -> None:
    if opset < MIN_OPSET:
        raise ValueError(f"opset {opset} is too old; the body needs {MIN_OPSET}")


def experts_forms(node: onnx.NodeProto) -> Forms:
    """The forms of a PackedExperts node.

    Raises:
        ValueError: attributes or inputs that the contract does not know or allow.
    """
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    texts: dict[str, Any] = {
        key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()
    }
    given = dict(zip(EXPERTS_INPUTS, node.input, strict=False))
    try:
        attributes = ExpertsAttributes(**texts)
        if not attributes.activation:
            raise ValueError("activation is empty")
        gate_up, down = (
            form_of(matrix, bool(given.get(f"{kind}_scales")), bool(given.get(f"{kind}_mins")))
            for kind, matrix in (("gate_up", attributes.gate_up()), ("down", attributes.down()))
        )
        return gate_up, down
    except (TypeError, ValueError) as error:
        raise ValueError(f"node {node.name!r}: {error}") from error


def forms_name(forms: Forms) -> str:
    """The name of PackedExperts nodes of these forms, where one model has several."""
    return PACKED_EXPERTS + "".join(form.capitalize() for form in forms)


def add_experts_bodies(model: onnx.ModelProto, rename: bool = False) -> None:
    """Give a model the bodies of its routing and expert nodes, and the domain's opset import.

    Args:
        model: changed in place.
        rename: name nodes of PackedExperts and bodies by form, so that nodes may differ in it.

    Raises:
        ValueError: nodes break the contract, or differ in form and may not be renamed.
    """
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    nodes = [node for node in model.graph.node if node.domain == DOMAIN]
    bodies: dict[str, onnx.FunctionProto] = {}
    found: dict[Forms, str] = {}
    for node in nodes:
        if node.op_type == PACKED_EXPERTS:
            forms = experts_forms(node)
            found.setdefault(forms, node.name)
            if rename:
                node.op_type = forms_name(forms)
            bodies[node.op_type] = experts_function(forms, opset, node.op_type)
        elif node.op_type == EXPERT_ROUTING:
            bodies[EXPERT_ROUTING] = routing_function(opset)
    if len(found) > 1 and not rename:
        names = ", ".join(map(repr, found.values()))
        raise ValueError(f"{PACKED_EXPERTS} nodes {names} differ in form")
    for name in bodies:
        for old in [f for f in model.functions if (f.domain, f.name) == (DOMAIN, name)]:
            model.functions.remove(old)
    model.functions.extend(bodies.values())
    if bodies and all(item.domain != DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
