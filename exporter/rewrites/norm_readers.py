"""Which linear layers read the output of each norm, where nothing else does.

A factor can then be moved between the columns of their matrices and the norm's gain: the model
stays the same. Where something else reads the output, the gain or one of the matrices (a tied
output layer's is also the embedding), the norm is not listed.
"""

import onnx_ir as ir

from ortloom.exporter.experts import EXPERTS
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.packed_linear import linear_weight
from ortloom.kernels.contract import DOMAIN

_EXPERTS_MATRIX = 3
"""Place of the matrices in an experts node whose columns multiply its first input."""


def _matrix(node: ir.Node) -> ir.Value | None:
    """The parameter whose columns multiply the node's first input."""
    if linear_weight(node) is not None:
        return node.inputs[1]
    if (node.domain, node.op_type) == (DOMAIN, EXPERTS):
        return node.inputs[_EXPERTS_MATRIX]
    return None


def _readers(value: ir.Value, width: int) -> list[ir.Value] | None:
    """The matrices that multiply a value [.., width], or None where something else reads it."""
    found: list[ir.Value] = []
    if value.is_graph_output():
        return None
    for use in value.uses():
        node = use.node
        keeps_columns = node.domain == "" and (
            (node.op_type == "Gather" and edit.integer(node, "axis", 0) == 0)
            or (node.op_type == "Reshape" and (edit.dims(node.outputs[0]) or (0,))[-1] == width)
        )
        matrix = _matrix(node)
        if use.idx != 0:
            return None
        if keeps_columns:
            behind = _readers(node.outputs[0], width)
            if behind is None:
                return None
            found += behind
        elif matrix is not None:
            found.append(matrix)
        else:
            return None
    return found


def norm_readers(graph: ir.Graph) -> dict[str, tuple[str, ...]]:
    """Name of a norm's gain [K] → names of the parameters [.., K] that read its output.

    Args:
        graph: the contract graph before its linears are packed.
    """
    found: dict[str, tuple[str, ...]] = {}
    for node in graph:
        if (node.domain, node.op_type) != ("", "RMSNormalization"):
            continue
        gain = node.inputs[1]
        size = edit.dims(gain)
        if gain is None or not edit.is_weight(gain) or size is None or len(size) != 1:
            continue
        matrices = _readers(node.outputs[0], size[0] or 0)
        if not matrices or len(list(gain.uses())) != 1:
            continue
        if all(edit.is_weight(m) and len(list(m.uses())) == matrices.count(m) for m in matrices):
            found[str(gain.name)] = tuple(dict.fromkeys(str(m.name) for m in matrices))
    return found
