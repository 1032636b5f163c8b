"""Rotary embedding and per-head norms move into PagedAttention.

transformers shapes query and key to [1, H, T, D], maybe normalises each head, rotates
(x * cos + rotate_half(x) * sin) and hands them over; the op takes the plain [T, H*D] rows of the
linear layer, the norm weights and one cos/sin table per rotary base instead.

The tables are exact: the angles are evaluated from the traced graph for every position (so they are
transformers' own fp32 products, scaling included), cosine and sine are taken in float64 and rounded
once to fp32.
"""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.evaluate import Array, NotEvaluable, value_of
from ortloom.kernels import contract


@dataclass(frozen=True)
class Rotation:
    """Which angles rotate a head: the Cos/Sin argument and the factor behind them."""

    angles: ir.Value
    factor: float


@dataclass(frozen=True)
class Heads:
    """What a query or key input really is: rows of a linear layer, norm, rotation."""

    rows: ir.Value
    norm_weight: ir.Value | None
    epsilon: float
    rotation: Rotation | None


def _trig(value: ir.Value | None, op_type: str) -> Rotation | None:
    """`value` = Unsqueeze(factor * op(angles), 1), the factor optional."""
    expanded = edit.producer(value, "Unsqueeze")
    if expanded is None:
        return None
    axes = edit.constant(expanded.inputs[1])
    if axes is None or axes.tolist() != [1]:
        return None
    inner, factor = expanded.inputs[0], 1.0
    scaled = edit.producer(inner, "Mul")
    if scaled is not None:
        number = edit.constant(scaled.inputs[1])
        if number is None or number.size != 1:
            return None
        inner, factor = scaled.inputs[0], float(number.item())
    wave = edit.producer(inner, op_type)
    if wave is None or wave.inputs[0] is None:
        return None
    return Rotation(wave.inputs[0], factor)


def _halves(value: ir.Value | None, head: int) -> ir.Value | None:
    """X if value = concat(-x[half:], x[:half]) over the last axis."""
    joined = edit.producer(value, "Concat")
    if joined is None or edit.integer(joined, "axis", 0) not in (-1, 3) or len(joined.inputs) != 2:
        return None
    negated = edit.producer(joined.inputs[0], "Neg")
    parts = [
        edit.producer(negated.inputs[0] if negated else None, "Slice"),
        edit.producer(joined.inputs[1], "Slice"),
    ]
    source: ir.Value | None = None
    for part, want in zip(parts, ((head // 2, head), (0, head // 2)), strict=True):
        if part is None:
            return None
        bounds = [edit.constant(v) for v in part.inputs[1:]]
        if any(b is None or b.size != 1 for b in bounds):
            return None
        start, end, axis, *step = (int(b.item()) for b in bounds if b is not None)
        if (start, min(end, head)) != want or axis not in (-1, 3) or step not in ([], [1]):
            return None
        if source is not None and part.inputs[0] is not source:
            return None
        source = part.inputs[0]
    return source


def _rotated(value: ir.Value, head: int) -> tuple[ir.Value, Rotation] | None:
    """(x, rotation) if value = x * cos + rotate_half(x) * sin."""
    total = edit.producer(value, "Add")
    straight = edit.producer(total.inputs[0], "Mul") if total else None
    turned = edit.producer(total.inputs[1], "Mul") if total else None
    if straight is None or turned is None:
        return None
    cosine, sine = _trig(straight.inputs[1], "Cos"), _trig(turned.inputs[1], "Sin")
    if cosine is None or sine is None or cosine != sine:
        return None
    source = _halves(turned.inputs[0], head)
    if source is None or source is not straight.inputs[0]:
        return None
    return source, cosine


def _transposed(value: ir.Value | None) -> ir.Value | None:
    node = edit.producer(value, "Transpose")
    if node is None or tuple(node.attributes["perm"].as_ints()) != (0, 2, 1, 3):
        return None
    return node.inputs[0]


def read_heads(value: ir.Value, num_heads: int) -> Heads | None:
    """Recognise what feeds a query, key or value input [T, H*D]; None if it is anything else."""
    packed = edit.producer(value, "Reshape")
    width = (edit.dims(value) or (None,))[-1]
    inner = _transposed(packed.inputs[0] if packed else None)
    if inner is None or width is None:
        return None
    head = width // num_heads
    rotation: Rotation | None = None
    rotated = _rotated(inner, head)
    if rotated is not None:
        inner, rotation = rotated
    split = _transposed(inner)
    if split is None:
        return None
    weight, epsilon = None, 0.0
    norm = edit.producer(split, "RMSNormalization")
    if norm is not None:
        weight, epsilon = norm.inputs[1], edit.real(norm, "epsilon", 1e-5)
        split = norm.inputs[0]
    shaped = edit.producer(split, "Reshape")
    want = (num_heads, head)
    if shaped is None or (edit.dims(split) or ())[-2:] != want or shaped.inputs[0] is None:
        return None
    rows = shaped.inputs[0]
    if (edit.dims(rows) or (None,))[-1] != width:
        return None
    return Heads(rows, weight, epsilon, rotation)


def rotation_tables(rotation: Rotation, positions: ir.Value, count: int) -> tuple[Array, Array]:
    """Cos and sin, each [count, rotary_dim / 2] fp32, for positions 0 .. count - 1.

    Raises:
        UnsupportedModel: the angles depend on more than the position, or are not the same for
            both halves of a head.
    """
    try:
        given = {positions: np.arange(count, dtype=np.int64)}
        angles = value_of(rotation.angles, given)
    except NotEvaluable as error:
        raise UnsupportedModel(
            f"rotary angles depend on '{error}', which is not supported"
        ) from error
    rows = angles.reshape(count, -1)
    half = rows.shape[1] // 2
    if not np.array_equal(rows[:, :half], rows[:, half:]):
        raise UnsupportedModel("rotary angles differ between the halves of a head")
    exact = rows[:, :half].astype(np.float64)
    cosine, sine = np.cos(exact) * rotation.factor, np.sin(exact) * rotation.factor
    return cosine.astype(np.float32), sine.astype(np.float32)


def _flat_rows(graph: ir.Graph, before: ir.Node, heads: Heads, width: int) -> ir.Value:
    shape = edit.add_constant(
        graph, f"rows.{heads.rows.name}", np.array([-1, width], dtype=np.int64)
    )
    node = edit.new_node(graph, before, "Reshape", [heads.rows, shape])
    node.outputs[0].type = heads.rows.type
    node.outputs[0].shape = ir.Shape([None, width])
    return node.outputs[0]


def fuse_rotary(graph: ir.Graph, positions: ir.Value, max_position: int) -> dict[str, Array]:
    """Move rotation and head norms into the attention nodes.

    Returns:
        The tables by initialiser name (`rope.<k>.cos`, `rope.<k>.sin`); the initialisers in the
        graph have no data, like weights.

    Raises:
        UnsupportedModel: a rotation that the op does not have.
    """
    tables: dict[str, Array] = {}
    seen: dict[tuple[bytes, bytes], tuple[ir.Value, ir.Value]] = {}
    known: dict[Rotation, tuple[ir.Value, ir.Value]] = {}

    def table_values(rotation: Rotation) -> tuple[ir.Value, ir.Value]:
        if rotation in known:
            return known[rotation]
        pair = rotation_tables(rotation, positions, max_position)
        key = (pair[0].tobytes(), pair[1].tobytes())
        if key not in seen:
            made = []
            for kind, array in zip(("cos", "sin"), pair, strict=True):
                name = f"rope.{len(seen)}.{kind}"
                value = ir.Value(
                    name=name, shape=ir.Shape(array.shape), type=ir.TensorType(ir.DataType.FLOAT)
                )
                graph.initializers[name] = value
                tables[name] = array
                made.append(value)
            seen[key] = (made[0], made[1])
        known[rotation] = seen[key]
        return seen[key]

    for node in list(graph):
        if node.op_type != contract.PAGED_ATTENTION or node.domain != contract.DOMAIN:
            continue
        counts = [edit.integer(node, "num_heads", 0), *[edit.integer(node, "kv_num_heads", 0)] * 2]
        heads = [read_heads(v, n) for v, n in zip(node.inputs[:3], counts, strict=True) if v]
        if any(h is None for h in heads) or len(heads) != 3:
            continue
        query, key, value = (h for h in heads if h is not None)
        norms = {h.epsilon for h in (query, key) if h.norm_weight is not None}
        if value.rotation or value.norm_weight or query.rotation != key.rotation or len(norms) > 1:
            continue
        inputs: list[ir.Value | None] = list(node.inputs)
        inputs += [None] * (len(contract.INPUTS) - len(inputs))
        for i, h in enumerate((query, key, value)):
            width = (edit.dims(node.inputs[i]) or (0,))[-1]
            inputs[i] = _flat_rows(graph, node, h, int(width or 0))
        attributes = dict(node.attributes)
        if query.rotation is not None:
            inputs[contract.INPUTS.index("cos_cache")] = table_values(query.rotation)[0]
            inputs[contract.INPUTS.index("sin_cache")] = table_values(query.rotation)[1]
            attributes["do_rotary"] = ir.AttrInt64("do_rotary", 1)
        if norms:
            inputs[contract.INPUTS.index("q_norm_weight")] = query.norm_weight
            inputs[contract.INPUTS.index("k_norm_weight")] = key.norm_weight
            attributes["qk_norm_epsilon"] = ir.AttrFloat32("qk_norm_epsilon", norms.pop())
        while inputs[-1] is None:
            inputs.pop()
        fused = ir.Node(
            node.domain, node.op_type, inputs, attributes=attributes.values(), num_outputs=3
        )
        graph.insert_before(node, fused)
        for old, new in zip(node.outputs, fused.outputs, strict=True):
            edit.same_type(new, old)
            edit.replace(old, new)
    _give_all_the_table(graph)
    edit.sweep(graph)
    return tables


def _give_all_the_table(graph: ir.Graph) -> None:
    """Layers without rotation (do_rotary = 0) get the first layer's tables beside rotating ones:
    the op's body is one function, whose nodes must agree in the inputs they give."""
    cosine, sine = contract.INPUTS.index("cos_cache"), contract.INPUTS.index("sin_cache")
    nodes = [n for n in graph if n.op_type == contract.PAGED_ATTENTION]
    first = next((n for n in nodes if edit.integer(n, "do_rotary", 0)), None)
    if first is None:
        return
    for node in nodes:
        if node.inputs[cosine] is None:
            node.replace_input_with(cosine, first.inputs[cosine])
            node.replace_input_with(sine, first.inputs[sine])
