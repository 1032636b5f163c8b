"""NumPy evaluation of the few ops that appear in constant and position-only subgraphs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from ortloom.exporter.rewrites import edit

Array = np.ndarray[Any, Any]


class NotEvaluable(Exception):
    """The value depends on something that is not given, or on an op outside the table."""


def _axes(x: Array, axes: Array, rank: int) -> tuple[int, ...]:
    return tuple(int(a) % rank for a in np.atleast_1d(axes))


def _reshape(node: ir.Node, x: Array, shape: Array) -> Array:
    target = [int(d) for d in shape]
    if not edit.integer(node, "allowzero", 0):
        target = [x.shape[i] if d == 0 else d for i, d in enumerate(target)]
    return x.reshape(target)


def _slice(
    node: ir.Node, x: Array, starts: Array, ends: Array, axes: Array, steps: Array | None = None
) -> Array:
    index = [slice(None)] * x.ndim
    for i, axis in enumerate(axes):
        step = 1 if steps is None else int(steps[i])
        index[int(axis)] = slice(int(starts[i]), min(int(ends[i]), x.shape[int(axis)]), step)
    return x[tuple(index)]


def _cast(node: ir.Node, x: Array) -> Array:
    return x.astype(ir.DataType(edit.integer(node, "to", 1)).numpy())


def _transpose(node: ir.Node, x: Array) -> Array:
    return x.transpose(tuple(node.attributes["perm"].as_ints()))


OPS: dict[str, Callable[..., Array]] = {
    "Cast": _cast,
    "Reshape": _reshape,
    "Slice": _slice,
    "Transpose": _transpose,
    "Concat": lambda node, *xs: np.concatenate(xs, axis=edit.integer(node, "axis", 0)),
    "Unsqueeze": lambda node, x, axes: np.expand_dims(x, _axes(x, axes, x.ndim + axes.size)),
    "Squeeze": lambda node, x, axes: np.squeeze(x, _axes(x, axes, x.ndim)),
    "Gather": lambda node, x, i: np.take(x, i, axis=edit.integer(node, "axis", 0)),
    "Mul": lambda node, a, b: a * b,
    "Div": lambda node, a, b: a / b,
    "Add": lambda node, a, b: a + b,
    "Sub": lambda node, a, b: a - b,
    "Neg": lambda node, x: -x,
    "Identity": lambda node, x: x,
}


def node_value(node: ir.Node, inputs: list[Array]) -> Array:
    """One node's output.

    Raises:
        NotEvaluable: the op is not in the table.
    """
    if node.domain != "" or node.op_type not in OPS:
        raise NotEvaluable(node.op_type)
    return np.asarray(OPS[node.op_type](node, *inputs))


def value_of(value: ir.Value | None, given: dict[ir.Value, Array]) -> Array:
    """A value from constants and the given arrays; `given` also caches what was computed.

    Raises:
        NotEvaluable: it depends on anything else.
    """
    if value is None:
        raise NotEvaluable("a missing input")
    if value in given:
        return given[value]
    fixed = edit.constant(value)
    if fixed is not None:
        return fixed
    node = value.producer()
    if node is None:
        raise NotEvaluable(str(value.name))
    result = node_value(node, [value_of(v, given) for v in node.inputs])
    given[value] = result
    return result
