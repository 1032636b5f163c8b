"""Gemm(x, W) → com.microsoft::MatMulNBits(x, B, scales); a tied embedding → GatherBlockQuantized.

A tied table is stored once: the output matrix reads its codes as [V, K/block, bytes], the embedding
reads the same bytes as [V, K*bits/8].
"""

import onnx_ir as ir

from ortloom.exporter.quantize import BLOCK, matmul_attributes
from ortloom.exporter.rewrites import edit


def _weight(name: str, dtype: ir.DataType, shape: tuple[int, ...], graph: ir.Graph) -> ir.Value:
    if name not in graph.initializers:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))
        graph.initializers[name] = value
    return graph.initializers[name]


def quantise_linears(graph: ir.Graph, wanted: set[str], bits: int) -> dict[str, bool]:
    """Replace linear layers whose weight is in `wanted`.

    Returns:
        Names of the weights replaced; the value says whether an embedding reads the codes too.
    """
    done: dict[str, bool] = {}
    for node in list(graph):
        weight = node.inputs[1] if node.op_type == "Gemm" and node.domain == "" else None
        if weight is None or weight.name not in wanted or weight.shape is None:
            continue
        name, (rows, width) = str(weight.name), (int(d) for d in weight.shape)
        codes = _weight(
            f"{name}.q{bits}", ir.DataType.UINT8, (rows, width // BLOCK, BLOCK * bits // 8), graph
        )
        scales = _weight(f"{name}.scales", ir.DataType.FLOAT, (rows, width // BLOCK), graph)
        inputs: list[ir.Value | None] = [node.inputs[0], codes, scales]
        if len(node.inputs) > 2:
            inputs += [None, None, node.inputs[2]]
        made = edit.new_node(
            graph, node, "MatMulNBits", inputs, matmul_attributes((rows, width), bits),
            domain="com.microsoft",
        )  # fmt: skip
        edit.same_type(made.outputs[0], node.outputs[0])
        edit.replace(node.outputs[0], made.outputs[0])
        done[name] = False
    for node in list(graph):
        table = node.inputs[0] if node.op_type == "Gather" and node.domain == "" else None
        if table is None or table.name not in done or table.shape is None:
            continue
        name, (rows, width) = str(table.name), (int(d) for d in table.shape)
        codes = _weight(
            f"{name}.q{bits}.table", ir.DataType.UINT8, (rows, width * bits // 8), graph
        )
        made = edit.new_node(
            graph,
            node,
            "GatherBlockQuantized",
            [codes, node.inputs[1], graph.initializers[f"{name}.scales"]],
            {"gather_axis": 0, "quantize_axis": 1, "block_size": BLOCK, "bits": bits},
            domain="com.microsoft",
        )
        edit.same_type(made.outputs[0], node.outputs[0])
        edit.replace(node.outputs[0], made.outputs[0])
        done[name] = True
    graph.opset_imports.setdefault("com.microsoft", 1)
    edit.sweep(graph)
    return done
