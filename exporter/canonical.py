"""The translated graph → the contract graph: fold → fuse → drop the batch axis → merge equals."""

from typing import Any

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.batch_axis import drop_batch_axis
from ortloom.exporter.rewrites.evaluate import Array
from ortloom.exporter.rewrites.expert_routing import fuse_routing
from ortloom.exporter.rewrites.fold import fold_constants
from ortloom.exporter.rewrites.reshape import merge_reshapes, settle_targets
from ortloom.exporter.rewrites.rms_norm import fuse_rms_norm
from ortloom.exporter.rewrites.rotary import fuse_rotary

INPUTS = (
    "input_ids",
    "positions",
    "cu_seqlens",
    "past_seqlens",
    "block_table",
    "slot_mapping",
    "logits_indices",
)

DIMS: dict[str, tuple[str, ...]] = {
    "input_ids": ("T",),
    "positions": ("T",),
    "cu_seqlens": ("R1",),
    "past_seqlens": ("R",),
    "block_table": ("R", "M"),
    "slot_mapping": ("T",),
    "logits_indices": ("N",),
}


def canonicalise(model: ir.Model, layers: int, max_position: int) -> dict[str, Array]:
    """Rewrite in place into the contract graph.

    Args:
        model: the translated graph.
        layers: number of attention layers.
        max_position: rows of the rotary tables.

    Returns:
        The rotary tables by initialiser name.

    Raises:
        UnsupportedModel: the graph cannot be brought into the contract's form.
    """
    graph = model.graph
    positions = next(v for v in graph.inputs if v.name == "positions")
    fold_constants(graph)
    settle_targets(graph)
    fuse_rms_norm(graph)
    tables = fuse_rotary(graph, positions, max_position)
    merge_reshapes(graph)
    drop_batch_axis(graph)
    merge_reshapes(graph)
    fuse_routing(graph)
    CommonSubexpressionEliminationPass()(model)
    edit.sweep(graph)
    name_values(graph, layers)
    strip(model)
    return tables


def _symbolic(value: ir.Value, shape: tuple[int | str | None, ...]) -> None:
    value.shape = ir.Shape(shape)


def name_values(graph: ir.Graph, layers: int) -> None:
    """Give inputs, outputs, values and nodes their final names and symbolic dimensions.

    Raises:
        UnsupportedModel: the graph's inputs or outputs are not those of the contract.
    """
    expected = len(INPUTS) + 2 * layers
    if len(graph.inputs) != expected or len(graph.outputs) != 1 + 2 * layers:
        raise UnsupportedModel(
            f"the traced graph has {len(graph.inputs)} inputs, the contract has {expected}"
        )
    taken: set[ir.Value] = set()
    names = [*INPUTS, *(f"k_cache.{i}" for i in range(layers))]
    names += [f"v_cache.{i}" for i in range(layers)]
    for name, value in zip(names, graph.inputs, strict=True):
        value.name = name
        taken.add(value)
        if name in DIMS:
            _symbolic(value, DIMS[name])
        elif value.shape is not None:
            _symbolic(value, ("num_blocks", "block_size", *tuple(value.shape)[2:]))
    outputs = ["logits", *(f"k_cache_out.{i}" for i in range(layers))]
    outputs += [f"v_cache_out.{i}" for i in range(layers)]
    for name, value in zip(outputs, graph.outputs, strict=True):
        value.name = name
        taken.add(value)
        if name == "logits":
            _symbolic(value, ("N", tuple(value.shape or (None,))[-1]))
            value.type = ir.TensorType(ir.DataType.FLOAT)
        elif value.shape is not None:
            _symbolic(value, ("num_blocks", "block_size", *tuple(value.shape)[2:]))
    number_nodes(graph)


def number_nodes(graph: ir.Graph) -> None:
    """Name nodes, inner values and small constants by position: equal graphs get equal bytes."""
    fixed = {*graph.inputs, *graph.outputs}
    for index, node in enumerate(graph):
        node.name = f"{node.op_type}_{index}"
        for place, out in enumerate(node.outputs):
            if out not in fixed:
                used = bool(out.uses())
                out.name = f"v{index}.{place}" if used else ""
                if out.shape is not None:
                    out.shape = ir.Shape([d if isinstance(d, int) else None for d in out.shape])
    order_initialisers(graph)


def order_initialisers(graph: ir.Graph) -> None:
    """Initialisers in order of first use; small constants are numbered in that order."""
    used = dict.fromkeys(v for node in graph for v in node.inputs if v is not None)
    ordered = [(v, edit.is_weight(v)) for v in used if v.is_initializer()]
    graph.initializers.clear()
    count = 0
    for value, weight in ordered:
        if not weight:
            value.name = f"const.{count}"
            count += 1
        graph.initializers[str(value.name)] = value


def strip(model: ir.Model) -> None:
    """Remove everything that depends on the machine: stack traces, doc strings, versions."""
    model.producer_name, model.producer_version = "ortloom", "1"
    model.domain, model.model_version, model.doc_string = None, None, None
    model.metadata_props.clear()
    graph = model.graph
    graph.name, graph.doc_string = "main", None
    graph.metadata_props.clear()
    parts: list[Any] = [*graph.inputs, *graph.outputs, *graph.initializers.values()]
    for node in graph:
        parts += [node, *node.outputs]
    for part in parts:
        part.metadata_props.clear()
        part.meta.clear()
        part.doc_string = None
