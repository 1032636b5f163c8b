"""Three linears that feed query, key and value of one attention op → one linear, packed QKV.

A decode step is bound by the number of node launches as much as by bytes, and the three matrices
read the same rows: one wide matrix over the rows of all three gives the same columns, bit by bit,
in one launch. The weight file holds the three side by side (`joined_weights` says which), so the
wide matrix and its parts are views of the same bytes.

All layers are fused or none: the body of the attention op is one function, whose nodes must agree
in the inputs they give.
"""

from dataclasses import dataclass

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.exporter.weights import JoinedTensor
from ortloom.kernels import contract

QUERY, KEY, VALUE = (contract.INPUTS.index(name) for name in ("query", "key", "value"))

WEIGHT_INPUTS = {("", "Gemm"): (1, 2), ("com.microsoft", "MatMulNBits"): (1, 2, 5)}
"""Linear op → its inputs that have a row for each output column: matrix, scales, bias."""

ROWS = "N"
"""The attribute of MatMulNBits that counts output columns."""


@dataclass(frozen=True)
class PackableAttention:
    """An attention node and the linears of its query, key and value."""

    node: ir.Node
    linears: tuple[ir.Node, ir.Node, ir.Node]

    def weights(self, place: int) -> list[ir.Value] | None:
        """The three weights at one input of the linears; None if they have none there."""
        values = [n.inputs[place] if place < len(n.inputs) else None for n in self.linears]
        found = [v for v in values if v is not None]
        return found or None


def _attributes(node: ir.Node) -> dict[str, str]:
    """What must be equal in the three linears: all attributes but the number of columns."""
    return {k: repr(a.value) for k, a in node.attributes.items() if k != ROWS}


def _read(node: ir.Node) -> PackableAttention | None:
    linears = []
    for place in (QUERY, KEY, VALUE):
        value = node.inputs[place]
        linear = None if value is None else value.producer()
        if value is None or linear is None or len(value.uses()) != 1 or value.is_graph_output():
            return None
        linears.append(linear)
    first = linears[0]
    places = WEIGHT_INPUTS.get((first.domain, first.op_type))
    if places is None or len(set(linears)) != 3:
        return None
    for linear in linears:
        if (linear.domain, linear.op_type) != (first.domain, first.op_type):
            return None
        if linear.inputs[0] is not first.inputs[0] or _attributes(linear) != _attributes(first):
            return None
        given = [v is not None for v in linear.inputs]
        if given != [v is not None for v in first.inputs]:
            return None
        for place, value in enumerate(linear.inputs):
            expected = place == 0 or (place in places and edit.is_weight(value))
            if value is not None and not expected:
                return None
    if first.op_type == "Gemm":
        factors = edit.real(first, "alpha", 1.0), edit.real(first, "beta", 1.0)
        turned = edit.integer(first, "transA", 0), edit.integer(first, "transB", 0)
        if factors != (1.0, 1.0) or turned != (0, 1):
            return None
    return PackableAttention(node, (linears[0], linears[1], linears[2]))


def packable(graph: ir.Graph) -> list[PackableAttention]:
    """The attention nodes with the linears before them; empty unless every one qualifies."""
    nodes = [
        n for n in graph if n.op_type == contract.PAGED_ATTENTION and n.domain == contract.DOMAIN
    ]
    found = [_read(node) for node in nodes]
    kept = [item for item in found if item is not None]
    return kept if len(kept) == len(nodes) else []


def joined_name(names: list[str]) -> str:
    """`a.q_proj.weight`, `a.k_proj.weight`, `a.v_proj.weight` → `a.qkv.weight`."""
    columns = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(parts[0] if len(set(parts)) == 1 else "qkv" for parts in columns)


def joined_weights(graph: ir.Graph) -> tuple[JoinedTensor, ...]:
    """What the weight file must hold side by side for `fuse_qkv` to find."""
    joined = []
    for item in packable(graph):
        linear = item.linears[0]
        for place in WEIGHT_INPUTS[linear.domain, linear.op_type]:
            values = item.weights(place)
            if values is not None:
                names = [str(v.name) for v in values]
                joined.append(JoinedTensor(joined_name(names), tuple(names)))
    return tuple(joined)


def _join(graph: ir.Graph, values: list[ir.Value]) -> ir.Value:
    """One initialiser over the bytes of several that lie side by side."""
    name = joined_name([str(v.name) for v in values])
    parts = [v.const_value for v in values if isinstance(v.const_value, ir.ExternalTensor)]
    if len(parts) != len(values):
        raise UnsupportedModel(f"a part of weight '{name}' has no place in the weight file")
    first = parts[0]
    start = end = int(first.offset or 0)
    for part in parts:
        if part.offset != end or part.location != first.location:
            raise UnsupportedModel(f"the parts of weight '{name}' do not lie side by side")
        end += int(part.length or 0)
    rows = sum(int(part.shape[0]) for part in parts)
    shape = ir.Shape([rows, *first.shape[1:]])
    made = ir.Value(name=name, type=ir.TensorType(first.dtype), shape=shape)
    made.const_value = ir.ExternalTensor(
        first.location, start, end - start, first.dtype, shape=shape, name=name
    )
    graph.initializers[name] = made
    return made


def fuse_qkv(graph: ir.Graph) -> int:
    """Replace the linears; returns how many attention nodes read packed QKV now.

    Raises:
        UnsupportedModel: the weights do not lie side by side in the weight file.
    """
    found = packable(graph)
    for item in found:
        linear = item.linears[0]
        places = WEIGHT_INPUTS[linear.domain, linear.op_type]
        inputs: list[ir.Value | None] = list(linear.inputs)
        for place in places:
            values = item.weights(place)
            if values is not None:
                inputs[place] = _join(graph, values)
        attributes = [a for name, a in linear.attributes.items() if name != ROWS]
        matrix = inputs[1]
        rows = int((edit.dims(matrix) or (0,))[0] or 0)
        if ROWS in linear.attributes:
            attributes.append(ir.AttrInt64(ROWS, rows))
        made = ir.Node(linear.domain, linear.op_type, inputs, attributes=attributes)
        graph.insert_before(linear, made)
        old = linear.outputs[0]
        made.outputs[0].type = old.type
        made.outputs[0].shape = ir.Shape([*(edit.dims(old) or (None, None))[:-1], rows])
        item.node.replace_input_with(QUERY, made.outputs[0])
        item.node.replace_input_with(KEY, None)
        item.node.replace_input_with(VALUE, None)
    edit.sweep(graph)
    return len(found)
