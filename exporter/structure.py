"""Structural assertions on a finished graph: what a numeric check can miss."""

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.rewrites import edit
from ortloom.kernels import contract

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
        "ortloom::PagedAttention",
        "ortloom::SkipRMSNorm",
    }
)
"""Ops whose rows are bitwise the same alone and in any batch (a test proves it for each)."""


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
    nodes = [n for n in graph if n.op_type == contract.PAGED_ATTENTION]
    if len(nodes) != layers:
        raise UnsupportedModel(f"{len(nodes)} attention ops for {layers} layers")
    key, value = contract.INPUTS.index("key_cache"), contract.INPUTS.index("value_cache")
    pools = [v for v in graph.inputs if str(v.name).startswith(("k_cache.", "v_cache."))]
    for pool in pools:
        uses = list(pool.uses())
        if len(uses) != 1 or uses[0].node.op_type != contract.PAGED_ATTENTION:
            raise UnsupportedModel(f"pool '{pool.name}' is not read by exactly one attention op")
        if uses[0].idx not in (key, value):
            raise UnsupportedModel(f"pool '{pool.name}' enters an attention op as another input")
    for node in nodes:
        for index, place in ((1, key), (2, value)):
            source = node.inputs[place]
            name = str(source.name if source else "").replace("_cache.", "_cache_out.")
            if not node.outputs[index].is_graph_output() or node.outputs[index].name != name:
                raise UnsupportedModel(f"pool output '{name}' does not come from its layer's op")
        heads = edit.integer(node, "num_heads", 0), edit.integer(node, "kv_num_heads", 0)
        if heads[1] < 1 or heads[0] % heads[1]:
            raise UnsupportedModel(f"{heads[0]} query heads over {heads[1]} key-value heads")
    for name, initialiser in graph.initializers.items():
        if initialiser.const_value is None:
            raise UnsupportedModel(f"weight '{name}' has no data")
