"""Several packed linears over the same rows → one, whose matrix is theirs, one below the other.

The weight file holds the parts side by side (`joined_operands` says which), so the wide matrix and
its parts are views of the same bytes. Every part has a multiple of 16 rows, whole panels.
"""

from collections.abc import Sequence

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.exporter.weights import JoinedTensor
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.packed_contract import LINEAR_INPUTS, PACKED_LINEAR, PANEL

OPERANDS = range(1, len(LINEAR_INPUTS))
"""Inputs that have a row for each output column: panels, scales, minima, bias."""

ROWS = "N"
"""The attribute that counts output columns."""


def _operand(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _attributes(node: ir.Node) -> dict[str, str]:
    """What must be equal in all: every attribute but the number of columns."""
    return {k: repr(a.value) for k, a in node.attributes.items() if k != ROWS}


def joinable(linears: Sequence[ir.Node]) -> bool:
    """Whether the linears read the same rows and weights of one form, in whole panels."""
    first = linears[0]
    for linear in linears:
        if (linear.domain, linear.op_type) != (DOMAIN, PACKED_LINEAR):
            return False
        if linear.inputs[0] is not first.inputs[0] or _attributes(linear) != _attributes(first):
            return False
        if edit.integer(linear, ROWS, 0) % PANEL:
            return False
        for place in OPERANDS:
            value, other = _operand(linear, place), _operand(first, place)
            if (value is None) != (other is None):
                return False
            if value is None or other is None:
                continue
            if not edit.is_weight(value) or value.dtype != other.dtype:
                return False
    return True


def joined_name(names: Sequence[str], label: str) -> str:
    """`a.q_proj.weight`, `a.k_proj.weight`, `a.v_proj.weight` → `a.qkv.weight`."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(parts[0] if len(set(parts)) == 1 else label for parts in columns)


def joined_operands(linears: Sequence[ir.Node], label: str) -> list[JoinedTensor]:
    """What the weight file must hold side by side for `join_linears` to find."""
    joined = []
    for place in OPERANDS:
        values = [v for v in (_operand(linear, place) for linear in linears) if v is not None]
        if values:
            names = [str(v.name) for v in values]
            joined.append(JoinedTensor(joined_name(names, label), tuple(names)))
    return joined


def _join(graph: ir.Graph, values: list[ir.Value], label: str) -> ir.Value:
    """One initialiser over the bytes of several that lie side by side."""
    name = joined_name([str(v.name) for v in values], label)
    parts = [v.const_value for v in values if isinstance(v.const_value, ir.ExternalTensor)]
    if len(parts) != len(values):
        raise UnsupportedModel(f"a part of weight '{name}' has no place in the weight file")
    first = parts[0]
    start = end = int(first.offset or 0)
    for part in parts:
        if part.offset != end or part.location != first.location:
            raise UnsupportedModel(f"the parts of weight '{name}' do not lie side by side")
        end += int(part.length or 0)
    rows = sum(int(part.shape[0]) for part in parts)
    shape = ir.Shape([rows, *first.shape[1:]])
    made = ir.Value(name=name, type=ir.TensorType(first.dtype), shape=shape)
    made.const_value = ir.ExternalTensor(
        first.location, start, end - start, first.dtype, shape=shape, name=name
    )
    graph.initializers[name] = made
    return made


def join_linears(
    graph: ir.Graph, linears: Sequence[ir.Node], label: str, activation: str = ""
) -> ir.Node:
    """One linear in place of several; the old ones stay until nobody reads them.

    Args:
        graph: the graph.
        linears: `joinable` ones.
        label: part of the names of the joined weights.
        activation: of a gated pair: the output is act(first) * second.

    Raises:
        UnsupportedModel: the weights do not lie side by side in the weight file.
    """
    first = linears[0]
    inputs: list[ir.Value | None] = list(first.inputs)
    for place in OPERANDS:
        values = [v for v in (_operand(linear, place) for linear in linears) if v is not None]
        if values:
            inputs[place] = _join(graph, values, label)
    rows = sum(edit.integer(linear, ROWS, 0) for linear in linears)
    attributes = [a for name, a in first.attributes.items() if name != ROWS]
    attributes.append(ir.AttrInt64(ROWS, rows))
    if activation:
        attributes.append(ir.AttrString("activation", activation))
    made = ir.Node(DOMAIN, PACKED_LINEAR, inputs, attributes=attributes)
    graph.insert_before(first, made)
    old = first.outputs[0]
    made.outputs[0].type = old.type
    columns = rows // 2 if activation else rows
    made.outputs[0].shape = ir.Shape([*(edit.dims(old) or (None, None))[:-1], columns])
    return made
