"""The part of the op's body that attends: one request after the other, each on its own shapes."""

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.body_pools import (
    PoolForm,
    RequestBlocks,
    gathered_keys,
    gathered_scales,
    gathered_values,
)


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


def _attend_request(names: dict[str, str], form: PoolForm, has_sink: bool) -> onnx.GraphProto:
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

    own = RequestBlocks(safe, length, kv_heads, size, block_size)
    keys = gathered_keys(b, form, own)
    zero = b.number(0.0)
    # What lies in the null block may be anything: its weight of 0 times NaN would be NaN.
    values = b.op("Where", b.unsqueeze(mapped, 0, 2), gathered_values(b, form, own), zero)
    query = b.reshape(
        b.slice(names["query"], "request_begin", "request_end"), count, kv_heads, group, size
    )
    rows = b.op("Mul", count, group)
    query = b.reshape(b.op("Transpose", query, perm=[1, 2, 0, 3]), kv_heads, rows, size)
    scores = b.reshape(b.op("MatMul", query, keys), kv_heads, group, count, length)
    if form.quantised:
        scores = b.op("Mul", scores, gathered_scales(b, "k_scale_out", own))
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
    if form.quantised:
        scales = b.op("Where", mapped, gathered_scales(b, "v_scale_out", own), zero)
        weights = b.op("Mul", weights, scales)
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


def request_body(names: dict[str, str], form: PoolForm, has_sink: bool) -> onnx.GraphProto:
    """Loop body: one request.

    Requests without tokens are left out, since ONNX Runtime up to 1.23 does not broadcast over an
    axis of size 0.

    Args:
        names: the step's tensors that the body of `function_body` prepares, by what they are.
        form: of the pools.
        has_sink: whether the nodes give head_sink.
    """
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
        then_branch=_attend_request(names, form, has_sink),
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
