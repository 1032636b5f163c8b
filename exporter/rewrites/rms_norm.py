"""w * (x * rsqrt(mean(x²) + eps)) → RMSNormalization(x, w)."""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit


def _inverse_rms(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, eps) if value = 1 / sqrt(mean(x², last axis) + eps)."""
    inverse = edit.producer(value, "Reciprocal")
    root = edit.producer(inverse.inputs[0], "Sqrt") if inverse else None
    shifted = edit.producer(root.inputs[0], "Add") if root else None
    if shifted is None:
        return None
    epsilon = edit.constant(shifted.inputs[1])
    mean = edit.producer(shifted.inputs[0], "ReduceMean")
    if epsilon is None or epsilon.size != 1 or mean is None:
        return None
    axes = edit.constant(mean.inputs[1])
    squared = edit.producer(mean.inputs[0], "Pow")
    if axes is None or axes.tolist() != [-1] or not edit.integer(mean, "keepdims", 1):
        return None
    power = edit.constant(squared.inputs[1]) if squared else None
    if squared is None or power is None or power.size != 1 or float(power.item()) != 2.0:
        return None
    source = squared.inputs[0]
    return None if source is None else (source, float(epsilon.item()))


def _normalised(value: ir.Value | None) -> tuple[ir.Value, float] | None:
    """(x, eps) if value = x * rsqrt(mean(x²) + eps)."""
    product = edit.producer(value, "Mul")
    if product is None:
        return None
    for x, scale in (product.inputs, tuple(reversed(product.inputs))):
        found = _inverse_rms(scale)
        if found is not None and found[0] is x:
            return found
    return None


def fuse_rms_norm(graph: ir.Graph) -> int:
    """Returns how many norms were fused."""
    count = 0
    for node in list(graph):
        if node.op_type != "Mul" or node.domain != "":
            continue
        for weight, inner in (node.inputs, tuple(reversed(node.inputs))):
            found = _normalised(inner) if edit.is_weight(weight) else None
            if found is None:
                continue
            source, epsilon = found
            fused = edit.new_node(
                graph,
                node,
                "RMSNormalization",
                [source, weight],
                {"axis": -1, "epsilon": epsilon, "stash_type": 1},
            )
            edit.same_type(fused.outputs[0], node.outputs[0])
            edit.replace(node.outputs[0], fused.outputs[0])
            count += 1
            break
    edit.sweep(graph)
    return count
