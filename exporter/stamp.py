"""A graph traced with a few layers → the graph of the whole model, by stamping layer blocks.

A block is the run of nodes from the first one that reads a parameter of its layer up to the next
block. It must read one value of the residual stream and write one, so blocks chain.
"""

import re
from dataclasses import dataclass
from itertools import pairwise

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.layer_kinds import LayerPlan

_LAYER = re.compile(r"^(.*\blayers\.)(\d+)(\..*)$")
_POOL = re.compile(r"^([kv]_(?:cache|scale)(?:_out)?\.)(\d+)()$")


def renumber(name: str, number: int) -> str:
    """A parameter or pool name with another layer number."""
    match = _LAYER.match(name) or _POOL.match(name)
    return name if match is None else f"{match[1]}{number}{match[3]}"


def layer_of(name: str | None) -> int | None:
    """The layer number inside a parameter or pool name."""
    match = _LAYER.match(name or "") or _POOL.match(name or "")
    return None if match is None else int(match[2])


@dataclass(frozen=True)
class _Block:
    nodes: tuple[ir.Node, ...]
    entry: ir.Value
    exit: ir.Value


def _node_layer(node: ir.Node) -> int | None:
    numbers = {layer_of(v.name) for v in node.inputs if v is not None and v.producer() is None}
    numbers.discard(None)
    if len(numbers) > 1:
        raise UnsupportedModel(f"a {node.op_type} node reads parameters of two layers")
    return numbers.pop() if numbers else None


def _split(
    graph: ir.Graph, layers: int
) -> tuple[list[ir.Node], list[list[ir.Node]], list[ir.Node]]:
    nodes = list(graph)
    marks = [_node_layer(n) for n in nodes]
    first = [marks.index(i) for i in range(layers)]
    last = max(i for i, mark in enumerate(marks) if mark == layers - 1)
    # The layer's final residual Add reads no parameter; it ends the block.
    end = last + 1
    while end < len(nodes) and nodes[end].op_type == "Add":
        end += 1
    bounds = [*first, end]
    if bounds != sorted(bounds):
        raise UnsupportedModel("the layers of the traced graph are not in order")
    blocks = [nodes[a:b] for a, b in pairwise(bounds)]
    for number, block in enumerate(blocks):
        if any(_node_layer(n) not in (None, number) for n in block):
            raise UnsupportedModel("the layers of the traced graph overlap")
    return nodes[: first[0]], blocks, nodes[end:]


def _block(nodes: list[ir.Node]) -> _Block:
    inside = {out for node in nodes for out in node.outputs}
    entries = {
        v
        for node in nodes
        for v in node.inputs
        if v is not None and v not in inside and v.producer() is not None
    }
    members = set(nodes)
    exits = {out for out in inside if any(use.node not in members for use in out.uses())}
    if len(entries) != 1 or len(exits) != 1:
        raise UnsupportedModel(
            f"a traced layer has {len(entries)} inputs and {len(exits)} outputs beside its pools"
        )
    return _Block(tuple(nodes), entries.pop(), exits.pop())


def _signature(block: _Block) -> list[tuple[object, ...]]:
    """The block's structure without layer numbers: equal for equal layers."""
    names: dict[ir.Value, str] = {block.entry: "entry"}
    rows: list[tuple[object, ...]] = []
    for index, node in enumerate(block.nodes):
        inputs = []
        for v in node.inputs:
            if v is None:
                inputs.append("")
            elif v in names:
                inputs.append(names[v])
            else:
                inputs.append(renumber(str(v.name), 0))
        for place, out in enumerate(node.outputs):
            names[out] = f"{index}.{place}"
        attributes = sorted((k, repr(a.value)) for k, a in node.attributes.items())
        rows.append((node.domain, node.op_type, tuple(inputs), tuple(attributes)))
    rows.append((names[block.exit],))
    return rows


class _Stamper:
    def __init__(self, graph: ir.Graph) -> None:
        self.old = graph
        self.leaves: dict[str, ir.Value] = {}
        self.nodes: list[ir.Node] = []

    def leaf(self, value: ir.Value, name: str) -> ir.Value:
        if name not in self.leaves:
            self.leaves[name] = ir.Value(
                name=name, shape=value.shape, type=value.type, const_value=value.const_value
            )
        return self.leaves[name]

    def copy(
        self, nodes: tuple[ir.Node, ...], values: dict[ir.Value, ir.Value], layer: int | None
    ) -> None:
        """Append copies of nodes; `values` maps old inner values to new ones and grows."""
        for node in nodes:
            inputs: list[ir.Value | None] = []
            for v in node.inputs:
                if v is None or v in values:
                    inputs.append(None if v is None else values[v])
                else:
                    name = str(v.name) if layer is None else renumber(str(v.name), layer)
                    inputs.append(self.leaf(v, name))
            made = ir.Node(
                node.domain, node.op_type, inputs, attributes=node.attributes.values(),
                num_outputs=len(node.outputs),
            )  # fmt: skip
            for old, new in zip(node.outputs, made.outputs, strict=True):
                new.type, new.shape = old.type, old.shape
                values[old] = new
                if old.is_graph_output():
                    name = str(old.name)
                    new.name = name if layer is None else renumber(name, layer)
                    self.leaves[new.name] = new
            self.nodes.append(made)


def stamp_layers(model: ir.Model, plan: LayerPlan) -> ir.Model:
    """The whole model's graph.

    Args:
        model: contract graph of the traced layers, with final names of inputs and outputs.
        plan: which layer is stamped from which.

    Raises:
        UnsupportedModel: the traced layers are no chain of blocks, or two layers of one kind came
            out different.
    """
    graph = model.graph
    before, parts, after = _split(graph, len(plan.traced))
    blocks = [_block(part) for part in parts]
    for one, other in plan.twins:
        if _signature(blocks[one]) != _signature(blocks[other]):
            raise UnsupportedModel(
                f"layers {plan.traced[one]} and {plan.traced[other]} should be alike but differ"
            )
    stamper = _Stamper(graph)
    values: dict[ir.Value, ir.Value] = {}
    stamper.copy(tuple(before), values, None)
    stream = values[blocks[0].entry]
    for layer, source in enumerate(plan.model_of):
        inner = {blocks[source].entry: stream}
        stamper.copy(blocks[source].nodes, inner, layer)
        stream = inner[blocks[source].exit]
    values[blocks[-1].exit] = stream
    stamper.copy(tuple(after), values, None)

    layers = range(len(plan.model_of))
    fixed = [v for v in graph.inputs if layer_of(v.name) is None]
    inputs = [stamper.leaf(v, str(v.name)) for v in fixed]
    inputs += [stamper.leaves[f"{kv}_cache.{i}"] for kv in "kv" for i in layers]
    outputs = [stamper.leaves["logits"]]
    outputs += [stamper.leaves[f"{kv}_cache_out.{i}"] for kv in "kv" for i in layers]
    taken = {*inputs, *outputs}
    initialisers = [v for v in stamper.leaves.values() if v not in taken]
    whole = ir.Graph(
        inputs, outputs, nodes=stamper.nodes, initializers=initialisers,
        opset_imports=dict(graph.opset_imports), name=graph.name,
    )  # fmt: skip
    return ir.Model(whole, ir_version=model.ir_version, producer_name=model.producer_name,
                    producer_version=model.producer_version)  # fmt: skip
