"""The function bodies of our ops, carried inside every graph.

A runtime without the op library inlines the bodies and computes the same numbers with standard ops.
"""

import onnx

from ortloom.errors import UnsupportedModel
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.experts_body import add_experts_bodies
from ortloom.kernels.experts_contract import PACKED_EXPERTS
from ortloom.kernels.function_body import add_paged_attention_body
from ortloom.kernels.layer_body import add_layer_bodies
from ortloom.kernels.norm_body import add_skip_norm_body
from ortloom.kernels.packed_body import add_packed_bodies
from ortloom.kernels.packed_contract import PACKED_EMBEDDING, PACKED_LINEAR


def attach_body(model: onnx.ModelProto) -> None:
    """Add the bodies that the model's nodes need; packed nodes are renamed by their form.

    Raises:
        UnsupportedModel: nodes of an op differ in ways that one body cannot serve.
    """
    try:
        add_paged_attention_body(model)
        add_packed_bodies(model, rename=True)
        add_experts_bodies(model, rename=True)
        add_skip_norm_body(model)
        add_layer_bodies(model)
    except ValueError as error:
        raise UnsupportedModel(f"nodes fit no common body: {error}") from error


def detach_bodies(model: onnx.ModelProto) -> None:
    """Undo `attach_body`: a written graph in the form that rewrites read."""
    del model.functions[:]
    for node in model.graph.node:
        for op in (PACKED_LINEAR, PACKED_EMBEDDING, PACKED_EXPERTS):
            if node.domain == DOMAIN and node.op_type.startswith(op):
                node.op_type = op
