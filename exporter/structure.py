"""Structural assertions on a finished graph: what a numeric check can miss."""

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.kernels import contract, layer_contract

ALLOWED = frozenset(
    {
        "ai.onnx::Add",
        "ai.onnx::Gather",
        "ai.onnx::Mul",
        "ai.onnx::Reshape",
        "ai.onnx::RMSNormalization",
        "ai.onnx::Sigmoid",
        "com.microsoft::QuickGelu",
        "ortloom::ExpertRouting",
        "ortloom::PackedEmbedding",
        "ortloom::PackedExperts",
        "ortloom::PackedLinear",
        "ortloom::SkipRMSNorm",
        *(f"{contract.DOMAIN}::{op}" for op in contract.OP_POOLS),
        *(f"{contract.DOMAIN}::{op}" for op in layer_contract.LAYER_OPS),
    }
)
"""Ops whose rows are bitwise the same alone and in any batch (a test proves it for each)."""

POOL_PREFIXES = ("k_cache.", "v_cache.", "k_scale.", "v_scale.")
"""How the names of graph inputs that are pools begin."""


def require_structure(model: ir.Model, layers: int) -> None:
    """Check a graph.

    Raises:
        UnsupportedModel: a layer without attention op, an op outside the allow-list, or a pool that
            does not run straight from a graph input through one op to a graph output.
    """
    graph = model.graph
    seen = {f"{node.domain or 'ai.onnx'}::{node.op_type}" for node in graph}
    foreign = sorted(seen - ALLOWED)
    if foreign:
        raise UnsupportedModel(
            f"the graph needs the op {foreign[0]}, which is not on the list of batch-invariant ops"
        )
    slots = {node: layer_contract.pool_slots(node.op_type) for node in graph}
    attending = {node: found for node, found in slots.items() if found is not None}
    if len(attending) != layers:
        raise UnsupportedModel(f"{len(attending)} attention ops for {layers} layers")
    pools = [v for v in graph.inputs if str(v.name).startswith(POOL_PREFIXES)]
    for pool in pools:
        uses = list(pool.uses())
        found = slots[uses[0].node] if len(uses) == 1 else None
        if found is None:
            raise UnsupportedModel(f"pool '{pool.name}' is not read by exactly one attention op")
        if uses[0].idx not in found.inputs.values():
            raise UnsupportedModel(f"pool '{pool.name}' enters an attention op as another input")
    for node, found in attending.items():
        # A pool output is named as its input.
        for pool_input, place in found.outputs.items():
            source = node.inputs[found.inputs[pool_input]]
            name = str(source.name if source else "").replace(".", "_out.")
            if not node.outputs[place].is_graph_output() or node.outputs[place].name != name:
                raise UnsupportedModel(f"pool output '{name}' does not come from its layer's op")
        heads = edit.integer(node, "num_heads", 0), edit.integer(node, "kv_num_heads", 0)
        if heads[1] < 1 or heads[0] % heads[1]:
            raise UnsupportedModel(f"{heads[0]} query heads over {heads[1]} key-value heads")
    for name, initialiser in graph.initializers.items():
        if initialiser.const_value is None:
            raise UnsupportedModel(f"weight '{name}' has no data")
