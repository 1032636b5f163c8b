"""x * Sigmoid(x) → com.microsoft::QuickGelu(alpha=1), one pass over the row instead of two."""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit


def fuse_silu(graph: ir.Graph) -> int:
    """Returns how many activations were fused."""
    count = 0
    for node in list(graph):
        if node.op_type != "Mul" or node.domain != "":
            continue
        for x, gate in (node.inputs, tuple(reversed(node.inputs))):
            sigmoid = edit.producer(gate, "Sigmoid")
            if sigmoid is None or sigmoid.inputs[0] is not x:
                continue
            fused = edit.new_node(
                graph, node, "QuickGelu", [x], {"alpha": 1.0}, domain="com.microsoft"
            )
            edit.same_type(fused.outputs[0], node.outputs[0])
            edit.replace(node.outputs[0], fused.outputs[0])
            count += 1
            break
    edit.sweep(graph)
    return count
