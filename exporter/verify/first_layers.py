"""The first layers of a graph, for checks of models too large to load twice.

The residual stream after layer n - 1 is handed to the final norm instead of that of the last layer.
"""

import msgspec
import onnx

from ortloom.errors import ParityFailed
from ortloom.exporter.stamp import layer_of
from ortloom.models.manifest import Graph


def _final_norm(model: onnx.ModelProto) -> onnx.NodeProto:
    for node in model.graph.node:
        if any(name.endswith("model.norm.weight") for name in node.input):
            return node
    raise ParityFailed("the graph has no final norm")


def _exit_of(model: onnx.ModelProto, layers: int) -> list[str]:
    """What layer `layers` reads: the stream itself, or the two parts of its sum."""
    name = f"model.layers.{layers}.input_layernorm.weight"
    for node in model.graph.node:
        if name in node.input:
            # Before its weight a norm has what it normalises, and so has a layer as one node.
            return list(node.input[: list(node.input).index(name)])
    raise ParityFailed(f"the graph does not show where layer {layers} begins")


def first_layers(graph: Graph, data: bytes, layers: int) -> tuple[Graph, bytes]:
    """The graph and its description with the first `layers` layers only.

    Raises:
        ParityFailed: the graph does not have the expected form.
    """
    model = onnx.load_from_string(data)
    norm = _final_norm(model)
    stream = _exit_of(model, layers)
    weight = norm.input[len(norm.input) - 1]
    del norm.input[:]
    norm.input.extend([*stream, weight])
    needed = {"logits"}
    keep = []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            keep.append(node)
            needed.update(name for name in node.input if name)
    kept = [onnx.NodeProto.FromString(n.SerializeToString()) for n in reversed(keep)]
    # The final norm may lie behind nodes of layers that are gone; order does not change.
    del model.graph.node[:]
    model.graph.node.extend(kept)
    for values in (model.graph.input, model.graph.output):
        rest = [v for v in values if (layer_of(v.name) or 0) < layers]
        del values[:]
        values.extend(rest)
    used = [i for i in model.graph.initializer if i.name in needed]
    del model.graph.initializer[:]
    model.graph.initializer.extend(used)
    pools = [f"{which}{out}" for which in ("k_cache", "v_cache", "k_scale", "v_scale")
             for out in ("", "_out")]  # fmt: skip
    shorter = {name: getattr(graph.io, name)[:layers] for name in pools}
    described = msgspec.structs.replace(graph, io=msgspec.structs.replace(graph.io, **shorter))
    return described, bytes(model.SerializeToString())
