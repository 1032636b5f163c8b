"""The body of `ortloom::PagedAttention` out of standard ONNX ops.

A model that carries the body as a model-local function runs without the op library: ONNX Runtime
takes a registered custom op if there is one and inlines the function otherwise. The numbers are the
op's; memory and speed are not: each request's keys and values are gathered densely, one request at
a time, and its scores are [H, tokens of the request, keys of the request].

How an exporter adds it: `add_paged_attention_body(model)` after all nodes are in place, or by hand
`model.functions.append(paged_attention_function(attributes, present))`, once a model.

The body reads every attribute through a reference, so layers may differ in all of them (a window on
every other layer, no rotation on every fourth). They must agree in which optional inputs they give:
one name has one body. (ONNX's function overloads would lift that, but ONNX Runtime up to 1.25
ignores the overload and silently takes the first body.) A layer without a sink among layers with
one gives -inf; or the node type is renamed and the body made under that `name`, which no longer
lets the op override it.

Binding: outputs 1 and 2 of the body are results of ScatterND, whose kernel leaves the copy out if
input and output are the same memory. So the runtime binds one OrtValue as pool input and output, as
it does for the op; without such a binding every step would copy the whole pool.

Slots and table entries of -1 go to the null block 0: what is written there is never read unmasked.
Batching: each request is computed by itself, with shapes that depend on that request only.
"""

from dataclasses import fields

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.body_heads import heads_of_step, rms_norm, rotation, token_positions
from ortloom.kernels.contract import (
    DOMAIN,
    DOMAIN_VERSION,
    INPUTS,
    OUTPUTS,
    PAGED_ATTENTION,
    PagedAttentionAttributes,
)

DEFAULT_OPSET = 23
MIN_OPSET = 18
RESERVED_INPUTS = ("k_scale", "v_scale", "attention_metadata")


def _soft_cap(b: BodyBuilder, scores: str, softcap: str) -> str:
    """Scores capped to softcap * tanh(scores / softcap) if softcap > 0."""
    capped, plain = BodyBuilder("capped_"), BodyBuilder("plain_")
    capped.op(
        "Mul", capped.op("Tanh", capped.op("Div", scores, softcap)), softcap, out="capped_scores"
    )
    plain.op("Identity", scores, out="plain_scores")

    def branch(nodes: list[onnx.NodeProto], name: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph(nodes, name, [], [output])

    return b.op(
        "If",
        b.op("Greater", softcap, b.number(0.0)),
        then_branch=branch(capped.nodes, "capped_scores"),
        else_branch=branch(plain.nodes, "plain_scores"),
    )


def _attend_request(names: dict[str, str], has_sink: bool) -> onnx.GraphProto:
    """Attention of a request with tokens, its output appended to the sequence of outputs."""
    b = BodyBuilder("attend_")
    size, block_size = names["size"], names["block_size"]
    kv_heads, group = names["kv_heads"], names["group"]
    count = "request_count"
    past = b.op("Gather", names["past"], b.unsqueeze("request_index", 0))
    length = b.op("Add", past, count)
    blocks = b.op("Div", b.op("Sub", b.op("Add", length, block_size), b.ints(1)), block_size)
    row = b.op("Gather", names["table"], "request_index", axis=0)
    row = b.slice(row, b.ints(0), blocks)
    safe = b.op("Max", row, b.ints(0))
    mapped = b.unsqueeze(b.op("GreaterOrEqual", row, b.ints(0)), 1)
    mapped = b.reshape(b.op("Expand", mapped, b.concat(b.ints(1), block_size)), b.ints(-1))
    mapped = b.slice(mapped, b.ints(0), length)

    def gathered(pool: str) -> str:
        flat = b.reshape(b.op("Gather", pool, safe, axis=0), b.ints(-1), kv_heads, size)
        return b.slice(flat, b.ints(0), length)

    keys = b.op("Transpose", gathered("key_cache_out"), perm=[1, 2, 0])  # [KH, D, L]
    zero = b.number(0.0)
    values = b.op("Where", b.unsqueeze(mapped, 1, 2), gathered("value_cache_out"), zero)
    values = b.op("Transpose", values, perm=[1, 0, 2])  # [KH, L, D]
    query = b.reshape(
        b.slice(names["query"], "request_begin", "request_end"), count, kv_heads, group, size
    )
    rows = b.op("Mul", count, group)
    query = b.reshape(b.op("Transpose", query, perm=[1, 2, 0, 3]), kv_heads, rows, size)
    scores = b.reshape(b.op("MatMul", query, keys), kv_heads, group, count, length)
    scores = _soft_cap(b, scores, names["softcap"])

    position = b.op("Add", b.count_to(count), past)
    distance = b.op("Sub", b.unsqueeze(position, 1), b.unsqueeze(b.count_to(length), 0))  # [n, L]
    behind = b.op("Or", b.op("GreaterOrEqual", distance, b.ints(0)), names["bidirectional"])
    near = b.op("Or", b.op("Less", distance, names["window"]), names["unbounded"])
    seen = b.op("And", b.unsqueeze(mapped, 0), b.op("And", behind, near))
    lowest = b.number(-3.0e38)
    top = b.op("ReduceMax", b.op("Where", seen, scores, lowest), b.ints(-1), keepdims=1)
    if has_sink:
        sink = b.reshape("head_sink", kv_heads, group, b.ints(1, 1))
        top = b.op("Max", top, sink)
    weights = b.op("Where", seen, b.op("Exp", b.op("Sub", scores, top)), zero)
    total = b.op("ReduceSum", weights, b.ints(-1), keepdims=1)
    if has_sink:
        total = b.op("Add", total, b.op("Exp", b.op("Sub", sink, top)))
    # No key seen: the sum of weights is 0 and so is the result, whatever it is divided by.
    total = b.op("Where", b.op("Equal", total, zero), b.number(1.0), total)
    mixed = b.op("MatMul", b.reshape(weights, kv_heads, rows, length), values)
    mixed = b.op("Div", b.reshape(mixed, kv_heads, group, count, size), total)
    mixed = b.reshape(b.op("Transpose", mixed, perm=[2, 0, 1, 3]), count, names["width"])
    b.op("SequenceInsert", "request_outputs_in", mixed, out="attended_outputs")
    return helper.make_graph(
        b.nodes, "attend", [], [helper.make_value_info("attended_outputs", _float_sequence())]
    )


def _float_sequence() -> onnx.TypeProto:
    tensors = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    return helper.make_sequence_type_proto(tensors)


def _request_body(names: dict[str, str], has_sink: bool) -> onnx.GraphProto:
    """Loop body: one request. Requests without tokens are left out, since ONNX Runtime up to 1.23
    does not broadcast over an axis of size 0."""
    b, skip = BodyBuilder("request_"), BodyBuilder("skip_")
    index = b.unsqueeze("request_index", 0)
    b.op("Gather", names["cu"], index, out="request_begin")
    b.op("Gather", names["cu"], b.op("Add", index, b.ints(1)), out="request_end")
    count = b.op("Sub", "request_end", "request_begin", out="request_count")
    skip.op("Identity", "request_outputs_in", out="skipped_outputs")
    b.op(
        "If",
        b.op("Squeeze", b.op("Greater", count, b.ints(0))),
        out="request_outputs_out",
        then_branch=_attend_request(names, has_sink),
        else_branch=helper.make_graph(
            skip.nodes,
            "skip",
            [],
            [helper.make_value_info("skipped_outputs", _float_sequence())],
        ),
    )
    b.op("Identity", "request_continue_in", out="request_continue_out")
    return helper.make_graph(
        b.nodes,
        "request",
        [
            helper.make_tensor_value_info("request_index", TensorProto.INT64, []),
            helper.make_tensor_value_info("request_continue_in", TensorProto.BOOL, []),
            helper.make_value_info("request_outputs_in", _float_sequence()),
        ],
        [
            helper.make_tensor_value_info("request_continue_out", TensorProto.BOOL, []),
            helper.make_value_info("request_outputs_out", _float_sequence()),
        ],
    )


def _body(given: dict[str, bool]) -> list[onnx.NodeProto]:
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

    slot = b.op("Max", slots, b.ints(0))
    block = b.op("Div", slot, block_size)
    place = b.op("Sub", slot, b.op("Mul", block, block_size))
    places = b.concat(b.unsqueeze(block, 1), b.unsqueeze(place, 1), axis=1)
    b.op("ScatterND", "key_cache", places, key, out="key_cache_out")
    b.op("ScatterND", "value_cache", places, value, out="value_cache_out")

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
        body=_request_body(names, given["head_sink"]),
    )
    b.op("ConcatFromSequence", outputs, axis=0, out="output")
    return b.nodes


def _check(attributes: PagedAttentionAttributes, given: dict[str, bool], opset: int) -> None:
    for name in RESERVED_INPUTS:
        if given[name]:
            raise ValueError(f"{name} is reserved; the body of version 1 takes none")
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
) -> onnx.FunctionProto:
    """The body for nodes that give the inputs marked in `present`, whatever their attributes.

    Args:
        attributes: of one such node; only checked.
        present: for each of `contract.INPUTS`, whether the nodes give it.
        opset: of the standard ops, 18 or newer; the model's own.
        name: of the function; PagedAttention by default, which lets a registered op override it.

    Raises:
        ValueError: the combination breaks the contract or the opset is too old.
    """
    if len(present) != len(INPUTS):
        raise ValueError(f"present has {len(present)} flags for {len(INPUTS)} inputs")
    given = dict(zip(INPUTS, present, strict=True))
    _check(attributes, given, opset)
    defaults = PagedAttentionAttributes(0, 0)
    required = ("num_heads", "kv_num_heads")
    return helper.make_function(
        DOMAIN,
        name if name is not None else PAGED_ATTENTION,
        list(INPUTS),
        list(OUTPUTS),
        _body(given),
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


def add_paged_attention_body(model: onnx.ModelProto) -> None:
    """Give a model the body that its PagedAttention nodes need, and the domain's opset import.

    Raises:
        ValueError: the nodes do not agree in their optional inputs, or break the contract.
    """
    nodes = [
        node
        for node in model.graph.node
        if node.domain == DOMAIN and node.op_type == PAGED_ATTENTION
    ]
    present = {present_inputs(node): node for node in nodes}
    if len(present) > 1:
        names = ", ".join(repr(node.name) for node in present.values())
        raise ValueError(f"PagedAttention nodes {names} differ in their optional inputs")
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    for node in nodes:
        function = paged_attention_function(node_attributes(node), present_inputs(node), opset)
    if not nodes:
        return
    for old in [f for f in model.functions if (f.domain, f.name) == (DOMAIN, PAGED_ATTENTION)]:
        model.functions.remove(old)
    model.functions.append(function)
    if all(item.domain != DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
