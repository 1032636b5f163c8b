"""SiLU(gate(x)) * up(x) → one packed linear over both matrices, with the activation inside."""

from dataclasses import dataclass

import onnx_ir as ir

from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.joined_linears import join_linears, joinable, joined_operands
from ortloom.exporter.weights import JoinedTensor
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.packed_contract import PACKED_LINEAR

LABEL = "gate_up"
SILU = "silu"


@dataclass(frozen=True)
class Gate:
    """A gated pair: `product` = SiLU(gate) * up."""

    product: ir.Node
    linears: tuple[ir.Node, ir.Node]


def _silu_of(value: ir.Value | None) -> ir.Value | None:
    """The x of a `value` = x * Sigmoid(x) that is read once."""
    product = edit.producer(value, "Mul")
    if value is None or product is None or len(value.uses()) != 1:
        return None
    for x, gate in (product.inputs, tuple(reversed(product.inputs))):
        sigmoid = edit.producer(gate, "Sigmoid")
        if x is not None and sigmoid is not None and sigmoid.inputs[0] is x:
            return x if len(x.uses()) == 2 else None
    return None


def gates(graph: ir.Graph) -> list[Gate]:
    """The gated pairs of a contract graph."""
    found = []
    for node in graph:
        if node.op_type != "Mul" or node.domain != "":
            continue
        for active, up in (node.inputs, tuple(reversed(node.inputs))):
            gate = edit.producer(_silu_of(active), PACKED_LINEAR, DOMAIN)
            other = edit.producer(up, PACKED_LINEAR, DOMAIN)
            if gate is None or other is None or gate is other or up is None:
                continue
            if len(up.uses()) == 1 and joinable((gate, other)):
                sizes = {edit.integer(linear, "N", 0) for linear in (gate, other)}
                if len(sizes) == 1:
                    found.append(Gate(node, (gate, other)))
                break
    return found


def joined_gates(graph: ir.Graph) -> tuple[JoinedTensor, ...]:
    """What the weight file must hold side by side for `fuse_gates` to find."""
    return tuple(j for gate in gates(graph) for j in joined_operands(gate.linears, LABEL))


def fuse_gates(graph: ir.Graph) -> int:
    """Replace the pairs; returns how many there were.

    Raises:
        UnsupportedModel: the weights do not lie side by side in the weight file.
    """
    found = gates(graph)
    for gate in found:
        made = join_linears(graph, gate.linears, LABEL, SILU)
        old = gate.product.outputs[0]
        edit.same_type(made.outputs[0], old)
        edit.replace(old, made.outputs[0])
    edit.sweep(graph)
    return len(found)
