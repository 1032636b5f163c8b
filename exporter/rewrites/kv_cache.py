"""The attention ops of a graph get pools of another element type, in the head-major layout.

Only the attention nodes and the pools change: names, order and all else stay, so the graphs of a
bundle differ in nothing but their KV cache.
"""

from dataclasses import dataclass

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.kernels import contract


@dataclass(frozen=True)
class KVCacheForm:
    """One kind of KV cache: its name as in --kv-cache-dtype, the pools' element type, and what the
    graph's file name says of it."""

    name: str
    pools: str
    suffix: str


FORMS = (
    KVCacheForm("float32", "float32", ""),
    KVCacheForm("float16", "float16", ".kv-float16"),
    KVCacheForm("bfloat16", "bfloat16", ".kv-bfloat16"),
    KVCacheForm("int8_per_token_head", "int8", ".kv-int8"),
)
"""What a cpu graph is written for."""

_ELEMENTS = {
    "float32": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "int8": ir.DataType.INT8,
}
_CACHES = tuple(contract.INPUTS.index(name) for name in contract.POOLS[:2])
_SCALES = tuple(contract.INPUTS.index(name) for name in contract.POOLS[2:])


def set_kv_cache(graph: ir.Graph, form: KVCacheForm) -> None:
    """Change every attention node and its pools, in place.

    Raises:
        UnsupportedModel: a pool is no graph input with a fixed number of heads.
    """
    op = contract.POOL_OPS[form.pools]
    scales: list[tuple[ir.Value, ir.Value]] = []
    for node in graph:
        if node.domain != contract.DOMAIN or node.op_type != contract.PAGED_ATTENTION:
            continue
        node.op_type = op
        node.attributes["kv_layout"] = ir.AttrString("kv_layout", contract.HEAD_MAJOR_LAYOUT)
        kind = ir.TensorType(_ELEMENTS[form.pools])
        for place in _CACHES:
            pool = node.inputs[place]
            if pool is None:
                raise UnsupportedModel("an attention op has no pool")
            pool.type = kind
        for output in node.outputs[1:3]:
            output.type = kind
        if form.pools == "int8":
            scales += _add_scales(node)
    # Keys before values, as the pools are.
    for which in ("k", "v"):
        for given, back in scales:
            if str(given.name).startswith(which):
                graph.inputs.append(given)
                graph.outputs.append(back)


def _add_scales(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """Scale pools beside a node's pools: their inputs and outputs, keys first."""
    node.resize_inputs(max(_SCALES) + 1)
    node.resize_outputs(3 + len(_SCALES))
    made = []
    for cache, place, output in zip(_CACHES, _SCALES, node.outputs[3:], strict=True):
        pool = node.inputs[cache]
        shape = None if pool is None else pool.shape
        if pool is None or shape is None or len(shape) != 4 or not isinstance(shape[2], int):
            raise UnsupportedModel("an attention op's pool has no fixed number of heads")
        name = str(pool.name).replace("_cache.", "_scale.")
        dims = ("num_blocks", "block_size", shape[2])
        value = ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
        node.replace_input_with(place, value)
        output.name = name.replace("_scale.", "_scale_out.")
        output.shape, output.type = ir.Shape(dims), value.type
        made.append((value, output))
    return made
