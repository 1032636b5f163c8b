"""Three linears that feed query, key and value of one attention op → one linear, packed QKV.

A decode step is bound by the number of node launches as much as by bytes, and the three matrices
read the same rows: one wide matrix over the rows of all three gives the same columns, bit by bit,
in one launch. The weight file holds the three side by side (`joined_weights` says which), so the
wide matrix and its parts are views of the same bytes.

All layers are fused or none: the body of the attention op is one function, whose nodes must agree
in the inputs they give.
"""

from dataclasses import dataclass

import onnx_ir as ir

from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.joined_linears import join_linears, joinable, joined_operands
from ortloom.exporter.weights import JoinedTensor
from ortloom.kernels import contract
from ortloom.kernels.packed_contract import PACKED_LINEAR

LABEL = "qkv"

QUERY, KEY, VALUE = (contract.INPUTS.index(name) for name in ("query", "key", "value"))


@dataclass(frozen=True)
class PackableAttention:
    """An attention node and the linears of its query, key and value."""

    node: ir.Node
    linears: tuple[ir.Node, ir.Node, ir.Node]


def _read(node: ir.Node) -> PackableAttention | None:
    linears = []
    for place in (QUERY, KEY, VALUE):
        value = node.inputs[place]
        linear = edit.producer(value, PACKED_LINEAR, contract.DOMAIN)
        if value is None or linear is None or len(value.uses()) != 1 or value.is_graph_output():
            return None
        linears.append(linear)
    if len(set(linears)) != 3 or not joinable(linears):
        return None
    return PackableAttention(node, (linears[0], linears[1], linears[2]))


def packable(graph: ir.Graph) -> list[PackableAttention]:
    """The attention nodes with the linears before them; empty unless every one qualifies."""
    nodes = [
        n for n in graph if n.op_type == contract.PAGED_ATTENTION and n.domain == contract.DOMAIN
    ]
    found = [_read(node) for node in nodes]
    kept = [item for item in found if item is not None]
    return kept if len(kept) == len(nodes) else []


def joined_weights(graph: ir.Graph) -> tuple[JoinedTensor, ...]:
    """What the weight file must hold side by side for `fuse_qkv` to find."""
    return tuple(j for item in packable(graph) for j in joined_operands(item.linears, LABEL))


def fuse_qkv(graph: ir.Graph) -> int:
    """Replace the linears; returns how many attention nodes read packed QKV now.

    Raises:
        UnsupportedModel: the weights do not lie side by side in the weight file.
    """
    found = packable(graph)
    for item in found:
        made = join_linears(graph, item.linears, LABEL)
        item.node.replace_input_with(QUERY, made.outputs[0])
        item.node.replace_input_with(KEY, None)
        item.node.replace_input_with(VALUE, None)
    edit.sweep(graph)
    return len(found)
