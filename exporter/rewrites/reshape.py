"""Chains of Reshape → one Reshape, and Reshapes that change nothing → nothing."""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit


def _keeps_shape(source: ir.Value, target: list[int]) -> bool:
    have = edit.dims(source)
    if have is None or len(have) != len(target):
        return False
    free = 0
    for size, want in zip(have, target, strict=True):
        if want == -1 and size is None:
            free += 1
        elif size is None or want not in (size, -1):
            return False
    return free <= 1


def merge_reshapes(graph: ir.Graph) -> int:
    """Returns how many Reshape nodes were bypassed or dropped.

    A Reshape with a constant target without 0 depends on its input's elements only, so what
    reshaped them before is irrelevant.
    """
    count = 0
    for node in list(graph):
        if node.op_type != "Reshape" or node.domain != "":
            continue
        shape = edit.constant(node.inputs[1])
        if shape is None or (shape == 0).any():
            continue
        source = node.inputs[0]
        while (inner := edit.producer(source, "Reshape")) is not None:
            source = inner.inputs[0]
        if source is not node.inputs[0]:
            node.replace_input_with(0, source)
            count += 1
        if source is not None and _keeps_shape(source, [int(d) for d in shape]):
            edit.replace(node.outputs[0], source)
            count += 1
    edit.sweep(graph)
    return count
