"""Chains of Reshape → one Reshape, Reshapes that change nothing → nothing, constant targets."""

import numpy as np
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


def _is_one_size(value: ir.Value | None) -> bool:
    """Whether the value is a scalar turned into a tensor of one element."""
    for op_type in ("Reshape", "Unsqueeze"):
        node = edit.producer(value, op_type)
        if node is not None and edit.dims(node.inputs[0]) == ():
            return True
    return False


def settle_targets(graph: ir.Graph) -> int:
    """Give Reshapes with one computed size among constants a target of constants.

    The other sizes are not 0 and imply the computed one, so -1 means the same. Returns how many.
    """
    count = 0
    for node in list(graph):
        target = edit.producer(node.inputs[1], "Concat") if node.op_type == "Reshape" else None
        if target is None or node.domain != "":
            continue
        parts = [edit.constant(part) for part in target.inputs]
        free = [i for i, part in enumerate(parts) if part is None]
        if len(free) != 1 or not _is_one_size(target.inputs[free[0]]):
            continue
        sizes = np.concatenate([np.array([-1]) if p is None else p.reshape(-1) for p in parts])
        if np.count_nonzero(sizes < 1) != 1:
            continue
        name = f"settled.{node.outputs[0].name}"
        node.replace_input_with(1, edit.add_constant(graph, name, sizes.astype(np.int64)))
        count += 1
    edit.sweep(graph)
    return count


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
