"""The body of `ortloom::PagedAttention` out of standard ONNX ops.

A model that carries the body as a model-local function runs without the op library: ONNX Runtime
takes a registered custom op if there is one and inlines the function otherwise. The numbers are the
op's; memory and speed are not: each request's keys and values are gathered densely, one request at
a time, and its scores are [H, tokens of the request, keys of the request].

How an exporter adds it: `add_paged_attention_body(model)` after all nodes are in place, or by hand
`model.functions.append(paged_attention_function(attributes, present))`, once a model.

The body reads every attribute but kv_layout through a reference, so layers may differ in all others
(a window on every other layer, no rotation on every fourth). They must agree in their layout and in
which optional inputs they give: one name has one body. (ONNX's function overloads would lift that,
but ONNX Runtime up to 1.25 ignores the overload and silently takes the first body.) A layer without
a sink among layers with one gives -inf; or the node type is renamed and the body made under that
`name`, which no longer lets the op override it.

Binding: the pool outputs of the body are results of ScatterND, whose kernel leaves the copy out if
input and output are the same memory. So the runtime binds one OrtValue as pool input and output, as
it does for the op; without such a binding every step would copy the whole pool.

Slots and table entries of -1 go to the null block 0: what is written there is never read unmasked.
Batching: each request is computed by itself, with shapes that depend on that request only.
"""

from dataclasses import fields

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_attend import request_body
from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.body_heads import heads_of_step, rms_norm, rotation, token_positions
from ortloom.kernels.body_pools import PoolForm, step_slots, store
from ortloom.kernels.contract import (
    DOMAIN,
    DOMAIN_VERSION,
    INPUTS,
    OP_POOLS,
    POOL_OPS,
    PagedAttentionAttributes,
    layouts_of,
    outputs_of,
)

DEFAULT_OPSET = 23
MIN_OPSET = 18
SCALES = ("k_scale", "v_scale")


def _body(given: dict[str, bool], form: PoolForm) -> list[onnx.NodeProto]:
    b = BodyBuilder()
    heads, kv_heads = b.integers("num_heads"), b.integers("kv_num_heads")
    size, block_size = b.dim("key_cache", 3), b.dim("key_cache", 1)
    tokens = b.dim("query", 0)
    cu, past = b.int64("cumulative_sequence_length"), b.int64("past_seqlens")
    table, slots = b.int64("block_table"), b.int64("slot_mapping")
    query, key, value = heads_of_step(b, given["key"], tokens, heads, kv_heads, size)
    width = b.op("Mul", size, heads)
    no_rows = b.reshape(b.slice(query, b.ints(0), b.ints(0)), b.ints(0), width)
    if given["q_norm_weight"]:
        epsilon = b.real("qk_norm_epsilon")
        query = rms_norm(b, query, "q_norm_weight", epsilon)
        key = rms_norm(b, key, "k_norm_weight", epsilon)
    if given["cos_cache"]:
        rotate = rotation(b, token_positions(b, tokens, cu, past), size)
        query, key = rotate(query), rotate(key)
    scale = b.real("scale")
    default_scale = b.op("Reciprocal", b.op("Sqrt", b.float32(size)))
    given_scale = b.op("Greater", scale, b.number(0.0))
    query = b.op("Mul", query, b.op("Where", given_scale, scale, default_scale))

    store(b, form, step_slots(b, slots, tokens, kv_heads, size, block_size), key, value)

    window = b.integers("local_window_size")
    names = {
        "cu": cu,
        "past": past,
        "table": table,
        "query": query,
        "size": size,
        "block_size": block_size,
        "kv_heads": kv_heads,
        "group": b.op("Div", heads, kv_heads),
        "width": width,
        "softcap": b.real("softcap"),
        "window": window,
        "unbounded": b.op("Less", window, b.ints(1)),
        "bidirectional": b.op("Equal", b.integers("is_causal"), b.ints(0)),
    }
    proceed = helper.make_tensor("value", TensorProto.BOOL, [], [True])
    outputs = b.op(
        "Loop",
        b.op("Squeeze", b.dim("past_seqlens", 0)),
        b.op("Constant", value=proceed),
        b.op("SequenceConstruct", no_rows),
        body=request_body(names, form, given["head_sink"]),
    )
    b.op("ConcatFromSequence", outputs, axis=0, out="output")
    return b.nodes


def _check(
    attributes: PagedAttentionAttributes, given: dict[str, bool], form: PoolForm, opset: int
) -> None:
    if given["attention_metadata"]:
        raise ValueError("attention_metadata is reserved; the body of version 1 takes none")
    for name in SCALES:
        if given[name] != form.quantised:
            must = "is needed" if form.quantised else "is of int8 pools only; it cannot be given"
            raise ValueError(f"{name} {must} with {form.dtype} pools")
    op = POOL_OPS[form.dtype]
    if form.layout not in layouts_of(op):
        raise ValueError(f"kv_layout '{form.layout}' is not supported by {op}")
    if given["key"] != given["value"]:
        raise ValueError("key and value must be given together, or neither for packed QKV")
    if given["q_norm_weight"] != given["k_norm_weight"]:
        raise ValueError("q_norm_weight and k_norm_weight must be given together")
    if given["cos_cache"] != given["sin_cache"]:
        raise ValueError("cos_cache and sin_cache must be given together")
    if attributes.do_rotary and not given["cos_cache"]:
        raise ValueError("do_rotary = 1 needs cos_cache and sin_cache")
    if attributes.num_heads % attributes.kv_num_heads:
        raise ValueError("num_heads must be a multiple of kv_num_heads")
    if attributes.local_window_size == 0 or attributes.local_window_size < -1:
        raise ValueError("local_window_size must be -1 (no window) or at least 1")
    if opset < MIN_OPSET:
        raise ValueError(f"opset {opset} is too old; the body needs {MIN_OPSET}")


def paged_attention_function(
    attributes: PagedAttentionAttributes,
    present: tuple[bool, ...],
    opset: int = DEFAULT_OPSET,
    name: str | None = None,
    pools: str = "float32",
) -> onnx.FunctionProto:
    """The body for nodes that give the inputs marked in `present`, whatever their attributes but
    kv_layout.

    Args:
        attributes: of one such node; kv_layout decides, the others are only checked.
        present: for each of `contract.INPUTS`, whether the nodes give it.
        opset: of the standard ops, 18 or newer; the model's own.
        name: of the function; that of the op by default, which lets a registered op override it.
        pools: element type of the key and value pools, one of `contract.POOL_OPS`.

    Raises:
        ValueError: the combination breaks the contract or the opset is too old.
    """
    if len(present) != len(INPUTS):
        raise ValueError(f"present has {len(present)} flags for {len(INPUTS)} inputs")
    given = dict(zip(INPUTS, present, strict=True))
    form = PoolForm(pools, attributes.kv_layout)
    _check(attributes, given, form, opset)
    op = POOL_OPS[pools]
    defaults = PagedAttentionAttributes(0, 0)
    required = ("num_heads", "kv_num_heads")
    return helper.make_function(
        DOMAIN,
        name if name is not None else op,
        list(INPUTS),
        list(outputs_of(op)),
        _body(given, form),
        [helper.make_opsetid("", opset)],
        attributes=list(required),
        attribute_protos=[
            helper.make_attribute(field.name, getattr(defaults, field.name))
            for field in fields(defaults)
            if field.name not in required
        ],
    )


def node_attributes(node: onnx.NodeProto) -> PagedAttentionAttributes:
    """The attributes of a PagedAttention node, defaults filled in.

    Raises:
        ValueError: an attribute the contract does not know, or num_heads or kv_num_heads missing.
    """
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    layout = values.get("kv_layout")
    if isinstance(layout, bytes):
        values["kv_layout"] = layout.decode()
    try:
        return PagedAttentionAttributes(**values)
    except TypeError as error:
        raise ValueError(f"node {node.name!r}: {error}") from error


def present_inputs(node: onnx.NodeProto) -> tuple[bool, ...]:
    """For each of `contract.INPUTS`, whether the node gives it."""
    given = [bool(name) for name in node.input]
    return tuple(given + [False] * (len(INPUTS) - len(given)))


def _agreed(op: str, nodes: list[onnx.NodeProto]) -> tuple[bool, ...]:
    """The inputs that all nodes of an op give.

    Raises:
        ValueError: they differ in them, or in kv_layout.
    """
    present = {present_inputs(node): node for node in nodes}
    layouts = {node_attributes(node).kv_layout: node for node in nodes}
    for what, found in (("optional inputs", present), ("kv_layout", layouts)):
        if len(found) > 1:
            names = ", ".join(repr(node.name) for node in found.values())
            raise ValueError(f"{op} nodes {names} differ in their {what}")
    return next(iter(present))


def add_paged_attention_body(model: onnx.ModelProto) -> None:
    """Give a model the bodies that its attention nodes need, and the domain's opset import.

    Raises:
        ValueError: nodes of one name do not agree in their optional inputs or their layout, or
            break the contract.
    """
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    for op, pools in OP_POOLS.items():
        nodes = [n for n in model.graph.node if n.domain == DOMAIN and n.op_type == op]
        if not nodes:
            continue
        present = _agreed(op, nodes)
        for node in nodes:
            function = paged_attention_function(node_attributes(node), present, opset, pools=pools)
        for old in [f for f in model.functions if (f.domain, f.name) == (DOMAIN, op)]:
            model.functions.remove(old)
        model.functions.append(function)
        if all(item.domain != DOMAIN for item in model.opset_import):
            model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
