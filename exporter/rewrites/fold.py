"""Constant folding of the small integer and scalar subgraphs that the translation leaves."""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.evaluate import NotEvaluable, node_value

MAX_ELEMENTS = 1024
"""Larger results stay computed: folding must not grow the graph file."""


def fold_constants(graph: ir.Graph) -> int:
    """Replace nodes whose inputs are all constant by their value; returns how many."""
    folded = 0
    for node in list(graph):
        if node.op_type == "Constant" or len(node.outputs) != 1:
            continue
        inputs = [edit.constant(v) for v in node.inputs]
        if not inputs or any(x is None for x in inputs):
            continue
        try:
            result = node_value(node, [x for x in inputs if x is not None])
        except NotEvaluable:
            continue
        if result.size > MAX_ELEMENTS:
            continue
        out = node.outputs[0]
        edit.replace(out, edit.add_constant(graph, f"folded.{out.name}", result))
        graph.remove(node, safe=True)
        folded += 1
    return folded
