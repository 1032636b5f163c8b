"""The body of `ortloom::DecoderLayer`: the norms in standard ops, and the ops of its parts.

The parts, PackedLinear and PagedAttention, have bodies of their own, which the model then carries
as well: a runtime without the op library inlines both levels. One body serves the nodes of a name,
which give the same inputs and have matrices of the same form; attributes are taken by reference.
"""

from typing import Any

import onnx
from onnx import helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.body_heads import rms_norm
from ortloom.kernels.contract import (
    DOMAIN,
    DOMAIN_VERSION,
    OP_POOLS,
    OUTPUTS,
    SCALE_OUTPUTS,
    PagedAttentionAttributes,
)
from ortloom.kernels.function_body import add_paged_attention_body
from ortloom.kernels.layer_contract import (
    LAYER_INPUTS,
    LAYER_OPS,
    LAYER_OUTPUTS,
    LAYER_POOL_INPUTS,
    MATRIX_ATTRIBUTES,
    MATRIX_INPUTS,
)
from ortloom.kernels.packed_body import add_packed_bodies
from ortloom.kernels.packed_contract import PACKED_LINEAR

_ATTENTION = tuple(PagedAttentionAttributes.__dataclass_fields__)


def _given(layer: onnx.NodeProto) -> tuple[str, ...]:
    return tuple(n for n, value in zip(LAYER_INPUTS, layer.input, strict=False) if value)


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names.pop()
    return names


class _Parts:
    """The nodes of PackedLinear and PagedAttention inside a layer.

    Args:
        layer: one node of the name; the parts get its attributes' values, so that their bodies can
            be made, and `references` says which attribute of the layer each of theirs is.
    """

    def __init__(self, layer: onnx.NodeProto) -> None:
        self._given = _given(layer)
        self._values = {a.name: helper.get_attribute_value(a) for a in layer.attribute}
        self._op = LAYER_OPS[layer.op_type]
        self.nodes: list[onnx.NodeProto] = []
        self.references: list[dict[str, str]] = []

    def _part(
        self, op: str, inputs: list[str], outputs: list[str], outer: dict[str, str]
    ) -> onnx.NodeProto:
        known = {name: of for name, of in outer.items() if of in self._values}
        attributes: dict[str, Any] = {name: self._values[of] for name, of in known.items()}
        kept = [name if name in self._given or name == inputs[0] else "" for name in inputs]
        node = helper.make_node(
            op, _trimmed(kept), outputs, outputs[0], domain=DOMAIN, **attributes
        )
        self.nodes.append(node)
        self.references.append(known)
        return node

    def linear(self, prefix: str, x: str, y: str) -> None:
        """Add y = PackedLinear(x) with the matrix of that prefix."""
        outer = {name: f"{prefix}_{name}" for name in MATRIX_ATTRIBUTES}
        if prefix == "gate_up":
            outer["activation"] = "activation"
        self._part(PACKED_LINEAR, [x, *(f"{prefix}_{n}" for n in MATRIX_INPUTS)], [y], outer)

    def attention(self, x: str, y: str) -> None:
        """Add y = attention over packed QKV x and the layer's pools."""
        scales = SCALE_OUTPUTS if OP_POOLS[self._op] == "int8" else ()
        inputs = [x, "", "", *LAYER_POOL_INPUTS]
        self._part(
            self._op, inputs, [y, *OUTPUTS[1:], *scales], {name: name for name in _ATTENTION}
        )


def _by_reference(node: onnx.NodeProto, references: dict[str, str]) -> None:
    for attribute in node.attribute:
        name, kind = attribute.name, attribute.type
        attribute.Clear()
        attribute.name, attribute.type = name, kind
        attribute.ref_attr_name = references[name]


def _layer_function(layer: onnx.NodeProto, opset: int) -> tuple[onnx.FunctionProto, _Parts]:
    """The body for the nodes named as `layer` is, with parts that still lack their form's name."""
    given = _given(layer)
    parts = _Parts(layer)
    before, between = BodyBuilder("first_"), BodyBuilder("second_")
    residual = before.op("Add", "x", "skip") if "skip" in given else "x"
    epsilon = before.real("attention_norm_epsilon")
    before.op("Identity", rms_norm(before, residual, "attention_gamma", epsilon), out="normed")
    parts.linear("qkv", "normed", "qkv")
    parts.attention("qkv", "mixed")
    parts.linear("o", "mixed", "projected")
    between.op("Add", "projected", residual, out="sum")
    epsilon = between.real("mlp_norm_epsilon")
    between.op("Identity", rms_norm(between, "sum", "mlp_gamma", epsilon), out="mlp_normed")
    parts.linear("gate_up", "mlp_normed", "gated")
    parts.linear("down", "gated", "y")
    nodes = [*before.nodes, *parts.nodes[:3], *between.nodes, *parts.nodes[3:]]
    scales = SCALE_OUTPUTS if "k_scale" in given else ()
    function = helper.make_function(
        DOMAIN,
        layer.op_type,
        list(LAYER_INPUTS),
        [*LAYER_OUTPUTS, *scales],
        nodes,
        [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, DOMAIN_VERSION)],
        attributes=sorted(item.name for item in layer.attribute),
    )
    return function, parts


def _add_functions(model: onnx.ModelProto, functions: list[onnx.FunctionProto]) -> None:
    known = {(f.domain, f.name): f for f in model.functions}
    for function in functions:
        old = known.get((function.domain, function.name))
        if old is None:
            model.functions.append(function)
        elif old.SerializeToString(deterministic=True) != function.SerializeToString(
            deterministic=True
        ):
            raise ValueError(f"{function.name} nodes inside and outside of layers differ in inputs")


def add_layer_bodies(model: onnx.ModelProto) -> None:
    """Give a model the bodies of its layers and of their parts, and the domain's opset import.

    Runs after the bodies of the graph's own nodes are in place.

    Raises:
        ValueError: layers of one name differ in the inputs or attributes they give, or a part
            breaks its contract.
    """
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    names: dict[str, onnx.NodeProto] = {}
    for node in model.graph.node:
        if node.domain != DOMAIN or node.op_type not in LAYER_OPS:
            continue
        first = names.setdefault(node.op_type, node)
        same = _given(first) == _given(node) and {a.name for a in first.attribute} == {
            a.name for a in node.attribute
        }
        if not same:
            raise ValueError(f"{node.op_type} nodes {first.name!r} and {node.name!r} differ")
    for old in [f for f in model.functions if f.name in LAYER_OPS]:
        model.functions.remove(old)
    for layer in names.values():
        function, parts = _layer_function(layer, opset)
        inner = helper.make_model(
            helper.make_graph(parts.nodes, "parts", [], []),
            opset_imports=[helper.make_opsetid("", opset)],
        )
        add_paged_attention_body(inner)
        add_packed_bodies(inner, rename=True)
        forms = {node.name: node.op_type for node in inner.graph.node}
        references = {
            node.name: known for node, known in zip(parts.nodes, parts.references, strict=True)
        }
        for node in function.node:
            if node.domain == DOMAIN:
                node.op_type = forms[node.name]
                _by_reference(node, references[node.name])
        _add_functions(model, [*inner.functions, function])
    if names and all(item.domain != DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
