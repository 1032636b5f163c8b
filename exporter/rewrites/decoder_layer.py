"""Norm, packed QKV, attention, projection, norm, gated MLP → one ortloom::DecoderLayer node.

A decode step is bound by the number of node launches as much as by bytes: the seven nodes of a
layer become one. Runs last, after the other fusions of the cpu variant. Layers of another shape
(norms behind the attention, parallel MLP, experts) stay as they are.
"""

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortloom.exporter.rewrites import edit
from ortloom.kernels.contract import DOMAIN, INPUTS, PAGED_ATTENTION
from ortloom.kernels.layer_contract import (
    LAYER_POOL_INPUTS,
    MATRICES,
    MATRIX_ATTRIBUTES,
    MAX_LAYER_FORMS,
    layer_name,
)
from ortloom.kernels.norm_contract import SKIP_RMS_NORM
from ortloom.kernels.packed_contract import PACKED_LINEAR

_FIRST_POOL = INPUTS.index(LAYER_POOL_INPUTS[0])


@dataclass(frozen=True)
class _Norm:
    """A norm: what it adds (None: nothing), its weight, its row and the sum it leaves."""

    x: ir.Value
    skip: ir.Value | None
    gamma: ir.Value
    epsilon: float
    y: ir.Value
    total: ir.Value


@dataclass(frozen=True)
class _Layer:
    attention: ir.Node
    first: _Norm
    second: _Norm
    linears: tuple[ir.Node, ir.Node, ir.Node, ir.Node]

    def inputs(self) -> list[ir.Value | None]:
        """In the contract's order; absent ones are None."""
        pools = list(self.attention.inputs[_FIRST_POOL : _FIRST_POOL + len(LAYER_POOL_INPUTS)])
        pools += [None] * (len(LAYER_POOL_INPUTS) - len(pools))
        qkv, projection, gate_up, down = (_operands(node) for node in self.linears)
        first = [self.first.x, self.first.skip, self.first.gamma]
        return [*first, *qkv, *pools, *projection, self.second.gamma, *gate_up, *down]

    def form(self) -> tuple[Any, ...]:
        """What one body must have in common: the inputs given and the matrices' kinds."""
        kinds = [str(node.attributes["format"].as_string()) for node in self.linears]
        return (*(value is not None for value in self.inputs()), *kinds)


def _operands(linear: ir.Node) -> list[ir.Value | None]:
    """weight, scales, mins and bias."""
    return [*linear.inputs[1:], None, None, None, None][:4]


def _only_use(value: ir.Value) -> ir.Node | None:
    uses = value.uses()
    if len(uses) != 1 or value.is_graph_output():
        return None
    return uses[0].node


def _linear(node: ir.Node | None, gated: bool) -> ir.Node | None:
    if node is None or node.op_type != PACKED_LINEAR or node.domain != DOMAIN:
        return None
    activation = node.attributes.get("activation")
    has_one = activation is not None and activation.as_string() != ""
    return node if has_one == gated else None


def _norm(node: ir.Node | None) -> _Norm | None:
    if node is None:
        return None
    if node.op_type == SKIP_RMS_NORM and node.domain == DOMAIN:
        x, skip, gamma = node.inputs
        if x is None or gamma is None or len(node.outputs) != 2:
            return None
        epsilon = edit.real(node, "epsilon", 1e-6)
        return _Norm(x, skip, gamma, epsilon, node.outputs[0], node.outputs[1])
    if node.op_type == "RMSNormalization" and node.domain == "":
        x, gamma = node.inputs
        if x is None or gamma is None or len(edit.dims(x) or ()) != 2:
            return None
        if edit.integer(node, "axis", -1) not in (-1, 1):
            return None
        return _Norm(x, None, gamma, edit.real(node, "epsilon", 1e-5), node.outputs[0], x)
    return None


def _width(linear: ir.Node, name: str) -> int:
    return edit.integer(linear, name, 0)


def _read(attention: ir.Node) -> _Layer | None:
    """The layer around an attention node; None if it has another shape."""
    query = attention.inputs[0]
    if query is None or attention.inputs[1] is not None or _only_use(query) is None:
        return None
    qkv = _linear(query.producer(), gated=False)
    normed = None if qkv is None else qkv.inputs[0]
    if qkv is None or normed is None or _only_use(normed) is not qkv:
        return None
    first = _norm(normed.producer())
    projection = _linear(_only_use(attention.outputs[0]), gated=False)
    after = None if projection is None else _only_use(projection.outputs[0])
    second = _norm(after)
    if first is None or projection is None or after is None or second is None:
        return None
    if {second.x, second.skip} != {first.total, projection.outputs[0]}:
        return None
    readers = {use.node for use in first.total.uses()}
    if first.total.is_graph_output() or readers - {after, first.y.producer()}:
        return None
    gate_up = _linear(_only_use(second.y), gated=True)
    down = None if gate_up is None else _linear(_only_use(gate_up.outputs[0]), gated=False)
    if gate_up is None or down is None:
        return None
    width = _width(qkv, "K")
    if not (
        width == _width(projection, "N") == _width(gate_up, "K") == _width(down, "N")
        and 2 * _width(down, "K") == _width(gate_up, "N")
    ):
        return None
    return _Layer(attention, first, second, (qkv, projection, gate_up, down))


def _attributes(layer: _Layer) -> dict[str, Any]:
    made: dict[str, Any] = dict(layer.attention.attributes)
    for prefix, linear in zip(MATRICES, layer.linears, strict=True):
        for name in MATRIX_ATTRIBUTES:
            if name in linear.attributes:
                made[f"{prefix}_{name}"] = linear.attributes[name].value
    made["activation"] = layer.linears[2].attributes["activation"].value
    made["attention_norm_epsilon"] = layer.first.epsilon
    made["mlp_norm_epsilon"] = layer.second.epsilon
    return {
        name: value.value if isinstance(value, ir.Attr) else value for name, value in made.items()
    }


def _fuse(graph: ir.Graph, layer: _Layer, form: int) -> None:
    name = layer_name(layer.attention.op_type, form)
    down, pools = layer.linears[3], layer.attention.outputs[1:]
    node = edit.new_node(
        graph,
        down,
        name,
        layer.inputs(),
        _attributes(layer),
        domain=DOMAIN,
        num_outputs=2 + len(pools),
    )
    for new, old in zip(node.outputs, (down.outputs[0], layer.second.total, *pools), strict=True):
        edit.same_type(new, old)
        edit.replace(old, new)


def fuse_layers(graph: ir.Graph) -> int:
    """Returns how many layers became one node.

    A model has at most `MAX_LAYER_FORMS` forms of layers; those of a further form stay.
    """
    forms: dict[tuple[Any, ...], int] = {}
    count = 0
    for node in list(graph):
        if node.domain != DOMAIN or not node.op_type.startswith(PAGED_ATTENTION):
            continue
        layer = _read(node)
        if layer is None:
            continue
        key = layer.form()
        if key not in forms and len(forms) == MAX_LAYER_FORMS:
            continue
        _fuse(graph, layer, forms.setdefault(key, len(forms)))
        count += 1
    edit.sweep(graph)
    return count
