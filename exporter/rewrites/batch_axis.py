"""Drop the batch axis of size 1: hidden states [1, T, H] → [T, H].

transformers' code wants [batch, sequence]; the packed graph has one batch, so every value with a
leading 1 has a twin without it. The rewrite walks the graph once and builds the twins.
"""

import onnx_ir as ir

from ortloom.exporter.rewrites import edit

ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Sigmoid", "Tanh", "Gelu", "Relu", "Cast"}
)


def _is_scalar(value: ir.Value | None) -> bool:
    fixed = edit.constant(value)
    return fixed is not None and fixed.size == 1 and fixed.ndim <= 1


class _Flattener:
    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.twins: dict[ir.Value, ir.Value] = {}
        self.count = 0

    def _twin_node(self, node: ir.Node, inputs: list[ir.Value | None], **changed: int) -> None:
        attributes = {**node.attributes, **ir_attributes(changed)}
        made = ir.Node(node.domain, node.op_type, inputs, attributes=attributes.values())
        self.graph.insert_before(node, made)
        old, new = node.outputs[0], made.outputs[0]
        new.type = old.type
        if old.shape is not None:
            new.shape = ir.Shape(tuple(old.shape)[1:])
        self._set(old, new)

    def _set(self, old: ir.Value, twin: ir.Value) -> None:
        self.twins[old] = twin
        self.count += 1

    def visit(self, node: ir.Node) -> None:
        """Build the twin of one node's output, or end a chain of twins at it."""
        if len(node.outputs) != 1 or node.domain not in ("", "com.microsoft"):
            return
        out = node.outputs[0]
        inputs = list(node.inputs)
        twins = [None if v is None else self.twins.get(v) for v in inputs]
        match node.op_type:
            case "Unsqueeze":
                axes = edit.constant(inputs[1])
                if axes is not None and axes.tolist() == [0] and inputs[0] is not None:
                    self._set(out, inputs[0])
            case "Gather":
                self._gather(node, inputs, twins)
            case "Reshape":
                self._reshape(node, inputs, twins)
            case "RMSNormalization":
                if twins[0] is not None and edit.integer(node, "axis", -1) == -1:
                    self._twin_node(node, [twins[0], *inputs[1:]])
            case op if op in ELEMENTWISE:
                if any(t is not None for t in twins):
                    flat = [
                        t or (v if _is_scalar(v) else None)
                        for t, v in zip(twins, inputs, strict=True)
                    ]
                    if all(v is not None for v in flat):
                        self._twin_node(node, flat)

    def _gather(
        self, node: ir.Node, inputs: list[ir.Value | None], twins: list[ir.Value | None]
    ) -> None:
        axis = edit.integer(node, "axis", 0)
        index = edit.constant(inputs[1])
        if twins[1] is not None and axis == 0 and edit.is_weight(inputs[0]):
            self._twin_node(node, [inputs[0], twins[1]])
        elif twins[0] is not None and axis == 1 and edit.dims(inputs[1]) == (None,):
            self._twin_node(node, [twins[0], inputs[1]], axis=0)
        elif twins[0] is not None and axis == 0 and index is not None and index.ndim == 0:
            edit.replace(node.outputs[0], twins[0])
            self.count += 1

    def _reshape(
        self, node: ir.Node, inputs: list[ir.Value | None], twins: list[ir.Value | None]
    ) -> None:
        shape, have = edit.constant(inputs[1]), edit.dims(inputs[0])
        if shape is None or have is None:
            return
        target = shape.tolist()
        if len(target) == 3 and target[:2] == [1, -1] and len(have) == 2 and have[1] == target[2]:
            if inputs[0] is not None:
                self._set(node.outputs[0], inputs[0])
        elif twins[0] is not None and len(have) == 3 and target == [-1, have[2]]:
            edit.replace(node.outputs[0], twins[0])
            self.count += 1


def ir_attributes(values: dict[str, int]) -> dict[str, ir.Attr]:
    """Integer attributes by name."""
    return {name: ir.AttrInt64(name, value) for name, value in values.items()}


def drop_batch_axis(graph: ir.Graph) -> int:
    """Returns how many values lost their leading 1."""
    flattener = _Flattener(graph)
    for node in list(graph):
        flattener.visit(node)
    edit.sweep(graph)
    return flattener.count
