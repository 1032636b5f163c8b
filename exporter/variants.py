"""Graph variants: pure rewrites of the contract graph, and their serialised form."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from ortloom.exporter.bodies import attach_body
from ortloom.exporter.canonical import number_nodes
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.fused_qkv import fuse_qkv
from ortloom.exporter.rewrites.silu import fuse_silu
from ortloom.exporter.rewrites.skip_norm import fuse_skip_norm
from ortloom.exporter.weights import WEIGHT_PATH, StoredTensor, WeightLayout

IR_VERSION = 10
"""Newest ONNX IR version that the oldest supported ONNX Runtime reads."""

ELEMENT_TYPES = {"float32": ir.DataType.FLOAT, "uint8": ir.DataType.UINT8}


def _cpu(graph: ir.Graph) -> None:
    fuse_silu(graph)
    fuse_skip_norm(graph)
    fuse_qkv(graph)


REWRITES: dict[str, Callable[[ir.Graph], None]] = {
    "contract": lambda graph: None,
    "plain": lambda graph: None,
    "cpu": _cpu,
}
"""What turns the contract graph into each variant."""


def reference_weights(model: ir.Model, layout: WeightLayout) -> None:
    """Point every weight initialiser at its bytes in the weight file."""
    places = layout.places()
    views: dict[str, tuple[StoredTensor, int, tuple[int, ...]]] = {}
    for tensor, offset in places.values():
        views[tensor.name] = (tensor, offset, tensor.shape)
        for name, shape in tensor.aliases:
            views[name] = (tensor, offset, shape)
    for name, value in model.graph.initializers.items():
        if not edit.is_weight(value):
            continue
        tensor, offset, shape = views[name]
        dtype = ELEMENT_TYPES[tensor.dtype]
        value.type, value.shape = ir.TensorType(dtype), ir.Shape(shape)
        value.const_value = ir.ExternalTensor(
            WEIGHT_PATH, offset, tensor.nbytes, dtype, shape=ir.Shape(shape), name=name
        )


def derive(contract: ir.Model, variant: str) -> ir.Model:
    """A variant as a new model; `contract` is not changed."""
    model: ir.Model = ir.from_proto(ir.to_proto(contract))
    REWRITES[variant](model.graph)
    number_nodes(model.graph)
    model.ir_version = IR_VERSION
    used = {node.domain for node in model.graph}
    used |= {node.domain for function in model.functions.values() for node in function}
    used |= {""}
    for domain in list(model.graph.opset_imports):
        if domain not in used:
            del model.graph.opset_imports[domain]
    for domain in used:
        model.graph.opset_imports.setdefault(domain, 1)
    return model


def to_bytes(model: ir.Model) -> bytes:
    """Serialised graph; the same model always gives the same bytes."""
    proto: onnx.ModelProto = ir.to_proto(model)
    imports = sorted((o.domain, o.version) for o in proto.opset_import)
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in imports)
    for node in proto.graph.node:
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
    attach_body(proto)
    return bytes(proto.SerializeToString(deterministic=True))


def histogram(model: ir.Model) -> tuple[tuple[str, int], ...]:
    """("domain::op", count) pairs, sorted; the default domain is `ai.onnx`."""
    counts = Counter(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in model.graph)
    return tuple(sorted(counts.items()))


def write(model: ir.Model, root: Path, variant: str) -> Path:
    """Write graphs/<variant>.onnx."""
    path = root / "graphs" / f"{variant}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(to_bytes(model))
    return path
