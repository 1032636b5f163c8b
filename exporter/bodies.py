"""The function body of our op, carried inside every graph.

A runtime without the op library inlines the body and computes the same numbers with standard ops.
"""

import onnx

from ortloom.errors import UnsupportedModel
from ortloom.kernels.function_body import add_paged_attention_body


def attach_body(model: onnx.ModelProto) -> None:
    """Add the body that the attention nodes share.

    Raises:
        UnsupportedModel: the layers differ in ways that one body cannot serve.
    """
    try:
        add_paged_attention_body(model)
    except ValueError as error:
        raise UnsupportedModel(f"the attention layers fit no common body: {error}") from error
