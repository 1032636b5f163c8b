"""Gemm(x, W) → ortloom::PackedLinear(x, panels, scales, mins, bias); Gather(W, ids) →
ortloom::PackedEmbedding. A tied table is stored once: both ops read the same panels."""

from collections.abc import Mapping

import onnx_ir as ir

from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.packed_weights import stored_tensors
from ortloom.exporter.rewrites import edit
from ortloom.exporter.weights import ELEMENT_TYPES
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.packed_contract import PACKED_EMBEDDING, PACKED_LINEAR


def packed_operands(
    graph: ir.Graph, name: str, form: PackedForm, shape: tuple[int, ...]
) -> list[ir.Value | None]:
    """Initialisers for panels, scales and minima (None where the form has none).

    Args:
        graph: gets those it does not have yet.
        name: of the parameter.
        form: how it is stored.
        shape: [N, K], or [E, N, K] for experts.
    """
    found: list[ir.Value | None] = []
    for tensor in stored_tensors(name, form, shape):
        if tensor.name not in graph.initializers:
            kind = ir.TensorType(ir.DataType[ELEMENT_TYPES[tensor.dtype]])
            value = ir.Value(name=tensor.name, type=kind, shape=ir.Shape(tensor.shape))
            graph.initializers[tensor.name] = value
        found.append(graph.initializers[tensor.name])
    return found + [None] * (3 - len(found))


def linear_weight(node: ir.Node) -> str | None:
    """The name of the matrix of a plain linear layer (alpha = beta = 1, x W^T)."""
    if node.op_type != "Gemm" or node.domain != "" or not edit.is_weight(node.inputs[1]):
        return None
    factors = edit.real(node, "alpha", 1.0), edit.real(node, "beta", 1.0)
    turned = edit.integer(node, "transA", 0), edit.integer(node, "transB", 0)
    if factors != (1.0, 1.0) or turned != (0, 1):
        return None
    return str(node.inputs[1].name) if node.inputs[1] is not None else None


def embedding_table(node: ir.Node) -> str | None:
    """The name of the matrix whose rows a Gather takes."""
    table = node.inputs[0] if node.op_type == "Gather" and node.domain == "" else None
    if table is None or not edit.is_weight(table) or edit.integer(node, "axis", 0) != 0:
        return None
    return str(table.name)


def pack_linears(graph: ir.Graph, forms: Mapping[str, PackedForm]) -> set[str]:
    """Replace the readers of the matrices in `forms`; returns the names of those replaced."""
    done: set[str] = set()
    for node in list(graph):
        linear, table = linear_weight(node), embedding_table(node)
        name = linear or table
        if name is None or name not in forms:
            continue
        weight = node.inputs[1 if linear else 0]
        shape = [int(d or 0) for d in edit.dims(weight) or (0, 0)]
        operands = packed_operands(graph, name, forms[name], (shape[0], shape[1]))
        attributes = forms[name].attributes((shape[0], shape[1]))
        if linear:
            bias = node.inputs[2] if len(node.inputs) > 2 else None
            inputs, op_type = [node.inputs[0], *operands, bias], PACKED_LINEAR
        else:
            inputs, op_type = [node.inputs[1], *operands], PACKED_EMBEDDING
        while inputs[-1] is None:
            inputs.pop()
        made = edit.new_node(graph, node, op_type, inputs, attributes, domain=DOMAIN)
        edit.same_type(made.outputs[0], node.outputs[0])
        edit.replace(node.outputs[0], made.outputs[0])
        done.add(name)
    graph.opset_imports.setdefault(DOMAIN, DOMAIN_VERSION)
    edit.sweep(graph)
    return done
