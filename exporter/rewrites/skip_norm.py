"""Add + RMSNormalization → ortloom::SkipRMSNorm: the residual sum and its norm in one pass."""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.norm_contract import SKIP_RMS_NORM


def fuse_skip_norm(graph: ir.Graph) -> int:
    """Returns how many pairs were fused. Values must be [T, H] (after `drop_batch_axis`)."""
    count = 0
    for norm in list(graph):
        if norm.op_type != "RMSNormalization" or norm.domain != "":
            continue
        total = edit.producer(norm.inputs[0], "Add")
        if total is None:
            continue
        shapes = [edit.dims(v) for v in (*total.inputs, norm.inputs[1])]
        if any(s is None for s in shapes) or [len(s or ()) for s in shapes] != [2, 2, 1]:
            continue
        fused = edit.new_node(
            graph,
            total,
            SKIP_RMS_NORM,
            [*total.inputs, norm.inputs[1]],
            {"epsilon": edit.real(norm, "epsilon", 1e-5)},
            domain=DOMAIN,
            num_outputs=2,
        )
        edit.same_type(fused.outputs[0], norm.outputs[0])
        edit.same_type(fused.outputs[1], total.outputs[0])
        edit.replace(norm.outputs[0], fused.outputs[0])
        edit.replace(total.outputs[0], fused.outputs[1])
        count += 1
    edit.sweep(graph)
    return count
