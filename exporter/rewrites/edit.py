"""Small editing steps shared by the rewrites (onnx_ir graphs)."""

from typing import Any

import numpy as np
import onnx_ir as ir


def constant(value: ir.Value | None) -> np.ndarray[Any, Any] | None:
    """The array a value always has, or None.

    Weights are initialisers without data in the graph, so they are never constants here.
    """
    if value is None:
        return None
    if is_weight(value):
        return None
    if value.const_value is not None:
        return np.asarray(value.const_value.numpy())
    node = value.producer()
    if node is None or node.op_type != "Constant" or node.domain != "":
        return None
    tensor = ir.convenience.get_const_tensor(value)
    return None if tensor is None else np.asarray(tensor.numpy())


def is_weight(value: ir.Value | None) -> bool:
    """Whether the value is a parameter: an initialiser whose data lies elsewhere."""
    if value is None or not value.is_initializer():
        return False
    return value.const_value is None or isinstance(value.const_value, ir.ExternalTensor)


def producer(value: ir.Value | None, op_type: str, domain: str = "") -> ir.Node | None:
    """The node that computes `value` if it is of that type."""
    node = None if value is None else value.producer()
    if node is None or node.op_type != op_type or node.domain != domain:
        return None
    return node


def dims(value: ir.Value | None) -> tuple[int | None, ...] | None:
    """Static sizes of a value, None for each dynamic one; None if the rank is unknown."""
    if value is None or value.shape is None:
        return None
    return tuple(d if isinstance(d, int) else None for d in value.shape)


def integer(node: ir.Node, name: str, default: int) -> int:
    """An integer attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else int(attribute.as_int())


def real(node: ir.Node, name: str, default: float) -> float:
    """A float attribute."""
    attribute = node.attributes.get(name)
    return default if attribute is None else float(attribute.as_float())


def add_constant(graph: ir.Graph, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
    """Register a small constant as an initialiser with data inside the graph file."""
    value = ir.Value(
        name=name,
        shape=ir.Shape(array.shape),
        type=ir.TensorType(ir.DataType.from_numpy(array.dtype)),
        const_value=ir.tensor(array, name=name),
    )
    graph.register_initializer(value)
    return value


def new_node(
    graph: ir.Graph,
    before: ir.Node,
    op_type: str,
    inputs: list[ir.Value | None],
    attributes: dict[str, Any] | None = None,
    domain: str = "",
    num_outputs: int = 1,
) -> ir.Node:
    """Insert a node in front of `before`; its outputs get no shape yet."""
    made = ir.convenience.convert_attributes(attributes or {})
    node = ir.Node(domain, op_type, inputs, attributes=made, num_outputs=num_outputs)
    graph.insert_before(before, node)
    return node


def same_type(new: ir.Value, old: ir.Value) -> None:
    """Give `new` the type and shape of `old`."""
    new.type, new.shape = old.type, old.shape


def replace(old: ir.Value, new: ir.Value) -> None:
    """Let every consumer, the graph outputs included, read `new` instead of `old`.

    A graph output keeps its name.
    """
    if old.is_graph_output():
        new.name = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)


def sweep(graph: ir.Graph) -> int:
    """Remove nodes nobody reads and initialisers nobody uses; returns how many nodes went."""
    removed = 0
    for node in reversed(graph):
        if all(not out.uses() and not out.is_graph_output() for out in node.outputs):
            graph.remove(node, safe=True)
            removed += 1
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[name]
    return removed
