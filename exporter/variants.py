"""Graph variants: pure rewrites of the contract graph, and their serialised form."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from ortloom.exporter.bodies import attach_body
from ortloom.exporter.canonical import number_nodes
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.decoder_layer import fuse_layers
from ortloom.exporter.rewrites.fused_qkv import fuse_qkv
from ortloom.exporter.rewrites.gated_linear import fuse_gates
from ortloom.exporter.rewrites.kv_cache import FORMS, KVCacheForm, set_kv_cache
from ortloom.exporter.rewrites.silu import fuse_silu
from ortloom.exporter.rewrites.skip_norm import fuse_skip_norm
from ortloom.exporter.weights import ELEMENT_TYPES, WEIGHT_PATH, WeightLayout

IR_VERSION = 10
"""Newest ONNX IR version that the oldest supported ONNX Runtime reads."""


def _cpu(graph: ir.Graph) -> None:
    fuse_gates(graph)
    fuse_silu(graph)
    fuse_skip_norm(graph)
    fuse_qkv(graph)


REWRITES: dict[str, Callable[[ir.Graph], None]] = {
    "contract": lambda graph: None,
    "plain": lambda graph: None,
    "cpu": _cpu,
}
"""What turns the contract graph into each variant."""

KV_CACHES: dict[str, tuple[KVCacheForm, ...]] = {"cpu": FORMS}
"""The kinds of KV cache that a variant is written for, a graph each; others keep the contract's."""

FUSES_LAYERS = frozenset({"cpu"})
"""Variants in which a decoder layer becomes one op, after the kind of KV cache is set: which op it
becomes depends on the pools."""


def reference_weights(model: ir.Model, layout: WeightLayout) -> None:
    """Point every weight initialiser at its bytes in the weight file."""
    places = layout.places()
    for name, value in model.graph.initializers.items():
        if not edit.is_weight(value):
            continue
        tensor, offset = places[name]
        dtype, shape = ir.DataType[ELEMENT_TYPES[tensor.dtype]], ir.Shape(tensor.shape)
        value.type, value.shape = ir.TensorType(dtype), shape
        value.const_value = ir.ExternalTensor(
            WEIGHT_PATH, offset, tensor.nbytes, dtype, shape=shape, name=name
        )


def derive(contract: ir.Model, variant: str, kv_cache: KVCacheForm | None = None) -> ir.Model:
    """A variant as a new model; `contract` is not changed.

    Args:
        contract: the contract graph.
        variant: one of `REWRITES`.
        kv_cache: one of the variant's `KV_CACHES`; by default its first, if it has any.
    """
    model: ir.Model = ir.from_proto(ir.to_proto(contract))
    REWRITES[variant](model.graph)
    if kv_cache is None:
        kv_cache = next(iter(KV_CACHES.get(variant, ())), None)
    if kv_cache is not None:
        set_kv_cache(model.graph, kv_cache)
    if variant in FUSES_LAYERS:
        fuse_layers(model.graph)
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


def finished(model: ir.Model) -> onnx.ModelProto:
    """The model as it is written: attributes and imports in order, op bodies attached."""
    proto: onnx.ModelProto = ir.to_proto(model)
    imports = sorted((o.domain, o.version) for o in proto.opset_import)
    del proto.opset_import[:]
    proto.opset_import.extend(onnx.helper.make_opsetid(d, v) for d, v in imports)
    for node in proto.graph.node:
        attributes = sorted(node.attribute, key=lambda a: a.name)
        del node.attribute[:]
        node.attribute.extend(attributes)
    attach_body(proto)
    return proto


def to_bytes(model: ir.Model) -> bytes:
    """Serialised graph; the same model always gives the same bytes."""
    return bytes(finished(model).SerializeToString(deterministic=True))


def histogram(model: onnx.ModelProto) -> tuple[tuple[str, int], ...]:
    """("domain::op", count) pairs, sorted; the default domain is `ai.onnx`."""
    counts = Counter(f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in model.graph.node)
    return tuple(sorted(counts.items()))


def write(model: ir.Model, root: Path, name: str) -> tuple[Path, tuple[tuple[str, int], ...]]:
    """Write graphs/<name>.onnx; the path and the histogram of its ops."""
    path = root / "graphs" / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    proto = finished(model)
    path.write_bytes(proto.SerializeToString(deterministic=True))
    return path, histogram(proto)
