"""The bodies of `ortloom::PackedLinear` and `ortloom::PackedEmbedding` out of standard ONNX ops.

As in `function_body`, a body reads every attribute through a reference, so nodes may differ in all
of them; bias may be given or not (Gemm takes it as an option). What a body cannot ask at run time
is which of scales and minima there are, so there is one body for each of three *forms*: "float"
(neither), "symmetric" (scales) and "minima" (both). One name has one body (ONNX Runtime up to 1.25
ignores function overloads): a model whose nodes are of one form keeps the op's own name, which lets
a registered op override the body; else the nodes are renamed by form (`add_packed_bodies`).

Numbers: the op's within 5e-6 of the largest output. Activations are rounded as the contract says
and are then multiplied by the fp32 values of the weights. Neither memory nor speed are the op's.
Up to ONNX Runtime 1.26 quantised weights are unpacked into fp32 constants when a session starts
(measured with 1.23: some 20 bytes a weight in all). From 1.27 on every run unpacks them anew, one
matrix after the other (1.32: ten times slower at one row), unless the session option
`optimization.constant_folding_max_output_size_in_bytes` is 0. Floating formats fold in both.

Batching: a row of zeros is appended to x and dropped again, since a single row takes another path
through MLAS than two, with other roundings; no row looks at another otherwise.
"""

from dataclasses import fields
from typing import Any, Literal

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.packed_contract import (
    ACTIVATION_GROUP,
    EMBEDDING_INPUTS,
    EMBEDDING_OUTPUTS,
    LINEAR_INPUTS,
    LINEAR_OUTPUTS,
    PACKED_EMBEDDING,
    PACKED_LINEAR,
    PANEL,
    ZERO,
    PackedAttributes,
)
from ortloom.kernels.packing import CODE_LANES, check_block_size

DEFAULT_OPSET = 23
MIN_OPSET = 18  # BitwiseAnd

Form = Literal["float", "symmetric", "minima"]
_INPUTS = {PACKED_LINEAR: LINEAR_INPUTS, PACKED_EMBEDDING: EMBEDDING_INPUTS}
_OUTPUTS = {PACKED_LINEAR: LINEAR_OUTPUTS, PACKED_EMBEDDING: EMBEDDING_OUTPUTS}
_REQUIRED = ("format", "N", "K")
_GELU_CUBE, _GELU_TANH = 0.044715, 0.7978845608028654  # sqrt(2 / pi)


def _is_text(b: BodyBuilder, attribute: str, text: str) -> str:
    """Whether the function's string attribute has this value, a scalar."""
    given = b.op("Constant")
    reference = b.nodes[-1].attribute.add()
    reference.name, reference.ref_attr_name = "value_string", attribute
    reference.type = onnx.AttributeProto.STRING
    return b.op("Equal", given, b.op("Constant", value_string=text))


def _choose(
    b: BodyBuilder, condition: str, kind: int, then: tuple[BodyBuilder, str],
    other: tuple[BodyBuilder, str],
) -> str:  # fmt: skip
    """If: the result of one of two builders, each given with the name of its result."""

    def branch(part: tuple[BodyBuilder, str]) -> onnx.GraphProto:
        builder, result = part
        output = helper.make_tensor_value_info(result, kind, None)
        return helper.make_graph(builder.nodes, result, [], [output])

    return b.op("If", condition, then_branch=branch(then), else_branch=branch(other))


def _nibbles(b: BodyBuilder, packed: str, axis: int) -> str:
    """Bytes → their low and their high four bits, side by side on a new axis."""
    low = b.op("BitwiseAnd", packed, b.op("Constant", value=_byte(15)))
    high = b.op("BitShift", packed, b.op("Constant", value=_byte(4)), direction="RIGHT")
    return b.concat(b.unsqueeze(low, axis), b.unsqueeze(high, axis), axis=axis)


def _byte(value: int) -> onnx.TensorProto:
    return helper.make_tensor("value", TensorProto.UINT8, [], [value])


def _codes(b: BodyBuilder, packed: str, axis: int) -> str:
    """Packed bytes → codes uint8 with a new axis: the codes of a byte (one or two)."""
    two, one = BodyBuilder("two_"), BodyBuilder("one_")
    return _choose(
        b,
        _is_text(b, "format", "u4"),
        TensorProto.UINT8,
        (two, _nibbles(two, packed, axis)),
        (one, one.unsqueeze(packed, axis)),
    )


def _zero(b: BodyBuilder) -> str:
    """The zero point that the format implies, a scalar."""
    is_u4 = _is_text(b, "format", "u4")
    return b.op("Where", is_u4, b.number(ZERO["u4"]), b.number(ZERO["u8"]))


def _values(b: BodyBuilder, codes: str, scales: str, mins: str | None) -> str:
    """Values of codes uint8, scales and minima of shapes that broadcast."""
    codes, scales = b.float32(codes), b.float32(scales)
    if mins is None:
        return b.op("Mul", b.op("Sub", codes, _zero(b)), scales)
    return b.op("Add", b.op("Mul", codes, scales), b.float32(mins))


def _float_weight(b: BodyBuilder, rows: str, width: str) -> str:
    """W fp32 [N, K] of a floating format."""
    weight = b.op("Transpose", "weight", perm=[0, 2, 1])
    return b.float32(b.slice(b.reshape(weight, b.ints(-1), width), b.ints(0), rows))


def _quantised_weight(b: BodyBuilder, form: Form, rows: str, width: str, share: str) -> str:
    """W fp32 [N, K] of a quantised format, K in the order (code of the byte, group, lane).

    That order leaves the nibbles of a row in two runs; `_reorder` gives x the same one.
    """
    block = b.integers("block_size")
    blocks = b.op("Div", width, block)

    def by_row(panels: str) -> str:
        turned = b.reshape(
            b.op("Transpose", panels, perm=[0, 2, 1]), b.ints(-1, 1), blocks, b.ints(1)
        )
        return b.slice(turned, b.ints(0), rows)

    codes = _codes(b, b.op("Transpose", "weight", perm=[0, 2, 1, 3]), 2)
    codes = b.reshape(codes, b.ints(-1), share, blocks, b.op("Div", block, share))
    codes = b.slice(codes, b.ints(0), rows)
    mins = by_row("mins") if form == "minima" else None
    return b.reshape(_values(b, codes, by_row("scales"), mins), rows, width)


def _rounded_activations(b: BodyBuilder, x: str, width: str) -> str:
    """Activations x [T, K] rounded to int8 by row and group, back as fp32."""
    groups = b.reshape(x, b.dim(x, 0), b.ints(-1, ACTIVATION_GROUP))
    largest = b.op("ReduceMax", b.op("Abs", groups), b.ints(-1), keepdims=1)
    inverse = b.op("Div", b.number(127.0), largest)
    # A factor of zero, unlike values of zero, keeps what is not finite so.
    inverse = b.op("Where", b.op("IsInf", inverse), b.number(0.0), inverse)
    rounded = b.op("Round", b.op("Mul", groups, inverse))
    rounded = b.op("Mul", rounded, b.op("Div", largest, b.number(127.0)))
    return b.reshape(rounded, b.dim(x, 0), width)


def _reorder(b: BodyBuilder, x: str, width: str, groups: str, share: str) -> str:
    """Columns of x in the order of `_quantised_weight`."""
    parts = b.reshape(x, b.dim(x, 0), groups, share, b.ints(CODE_LANES))
    return b.reshape(b.op("Transpose", parts, perm=[0, 2, 1, 3]), b.dim(x, 0), width)


def _activation(b: BodyBuilder, y: str) -> str:
    """act(gate) * up if an activation is set, else y itself."""
    plain, gated = BodyBuilder("plain_"), BodyBuilder("gated_")
    half = gated.op("Div", gated.integers("N"), gated.ints(2))
    gate = gated.slice(y, gated.ints(0), half, axis=1)
    up = gated.slice(y, half, gated.integers("N"), axis=1)
    silu, gelu = BodyBuilder("silu_"), BodyBuilder("gelu_")
    erf, tanh = BodyBuilder("erf_"), BodyBuilder("tanh_")
    silu_result = silu.op("Mul", gate, silu.op("Sigmoid", gate))
    root = erf.op("Mul", gate, erf.number(0.5**0.5))
    erf_result = _half_of_one_plus(erf, gate, erf.op("Erf", root))
    square = tanh.op("Mul", gate, gate)
    factor = tanh.op("Mul", square, tanh.number(_GELU_CUBE * _GELU_TANH))
    inner = tanh.op("Mul", gate, tanh.op("Add", factor, tanh.number(_GELU_TANH)))
    tanh_result = _half_of_one_plus(tanh, gate, tanh.op("Tanh", inner))
    gelu_result = _choose(
        gelu, _is_text(gelu, "activation", "gelu"), TensorProto.FLOAT,
        (erf, erf_result), (tanh, tanh_result),
    )  # fmt: skip
    acted = _choose(
        gated, _is_text(gated, "activation", "silu"), TensorProto.FLOAT,
        (silu, silu_result), (gelu, gelu_result),
    )  # fmt: skip
    return _choose(
        b, _is_text(b, "activation", ""), TensorProto.FLOAT,
        (plain, plain.op("Identity", y)), (gated, gated.op("Mul", acted, up)),
    )  # fmt: skip


def _half_of_one_plus(b: BodyBuilder, gate: str, bent: str) -> str:
    """0.5 * gate * (1 + bent)."""
    half = b.op("Mul", gate, b.number(0.5))
    return b.op("Mul", half, b.op("Add", bent, b.number(1.0)))


def _linear(form: Form) -> list[onnx.NodeProto]:
    b = BodyBuilder()
    rows, width, tokens = b.integers("N"), b.integers("K"), b.dim("x", 0)
    zeros = b.op("Expand", b.number(0.0), b.concat(b.ints(1), width))
    x = b.concat("x", zeros)
    if form == "float":
        weight = _float_weight(b, rows, width)
    else:
        groups = b.dim("weight", 1)
        share = b.op("Div", width, b.op("Mul", groups, b.ints(CODE_LANES)))
        x = _reorder(b, _rounded_activations(b, x, width), width, groups, share)
        weight = _quantised_weight(b, form, rows, width, share)
    y = b.op("Gemm", x, weight, "bias", transB=1)
    y = _activation(b, b.slice(y, b.ints(0), tokens))
    b.op("Identity", y, out="y")
    return b.nodes


def _embedding(form: Form) -> list[onnx.NodeProto]:
    b = BodyBuilder()
    rows, width, count = b.integers("N"), b.integers("K"), b.dim("ids", 0)
    # Gather would take -1 as the last row; N is refused.
    ids = b.op("Where", b.op("Less", "ids", b.ints(0)), rows, "ids")
    ids = b.op("Gather", b.count_to(rows), ids)
    panel, lane = b.op("Div", ids, b.ints(PANEL)), b.op("Mod", ids, b.ints(PANEL))
    place = b.op("Add", b.op("Mul", b.count_to(count), b.ints(PANEL)), lane)

    def gathered(panels: str, perm: list[int]) -> str:
        """The rows [T, ...] of panels [P, ..., 16, ...], via whole panels."""
        whole = b.op("Transpose", b.op("Gather", panels, panel, axis=0), perm=perm)
        shape = [b.dim(whole, axis) for axis in range(2, len(perm))]
        lanes = b.op("Mul", count, b.ints(PANEL))
        return b.op("Gather", b.reshape(whole, lanes, *shape), place, axis=0)

    if form == "float":
        values = b.float32(gathered("weight", [0, 2, 1]))
    else:
        block = b.integers("block_size")
        blocks = b.op("Div", width, block)
        codes = _codes(b, gathered("weight", [0, 2, 1, 3]), 2)
        codes = b.reshape(codes, count, blocks, block)
        scales = b.unsqueeze(gathered("scales", [0, 2, 1]), 2)
        mins = b.unsqueeze(gathered("mins", [0, 2, 1]), 2) if form == "minima" else None
        values = b.reshape(_values(b, codes, scales, mins), count, width)
    b.op("Identity", values, out="rows")
    return b.nodes


def form_of(attributes: PackedAttributes, has_scales: bool, has_mins: bool) -> Form:
    """The form of a node.

    Raises:
        ValueError: attributes and optional inputs break the contract.
    """
    name, block = attributes.format, attributes.block_size
    if attributes.activation not in ("", "silu", "gelu", "gelu_tanh"):
        raise ValueError(f"activation {attributes.activation!r} is unknown")
    if attributes.activation and (attributes.N % (2 * PANEL)):
        raise ValueError(f"N {attributes.N} is not two times a multiple of {PANEL}")
    if name in ("f32", "f16", "bf16"):
        if has_scales or has_mins or block:
            raise ValueError(f"format {name} has no scales, minima or blocks")
        return "float"
    if name not in ZERO:
        raise ValueError(f"format {name!r} is unknown")
    if not has_scales:
        raise ValueError(f"format {name} needs scales")
    check_block_size(block, attributes.K)
    return "minima" if has_mins else "symmetric"


def packed_function(
    op: str, form: Form, opset: int = DEFAULT_OPSET, name: str | None = None
) -> onnx.FunctionProto:
    """The body for nodes of a form, whatever their attributes.

    Args:
        op: PACKED_LINEAR or PACKED_EMBEDDING.
        form: see `form_of`.
        opset: of the standard ops, 18 or newer; the model's own.
        name: of the function; the op's by default, which lets a registered op override it.

    Raises:
        ValueError: the opset is too old.
    """
    if opset < MIN_OPSET:
        raise ValueError(f"opset {opset} is too old; the body needs {MIN_OPSET}")
    return helper.make_function(
        DOMAIN,
        name if name is not None else op,
        list(_INPUTS[op]),
        list(_OUTPUTS[op]),
        _linear(form) if op == PACKED_LINEAR else _embedding(form),
        [helper.make_opsetid("", opset)],
        attributes=list(_REQUIRED),
        attribute_protos=[
            helper.make_attribute(field.name, field.default)
            for field in fields(PackedAttributes)
            if field.name not in _REQUIRED
        ],
    )


def node_form(node: onnx.NodeProto) -> Form:
    """The form of a PackedLinear or PackedEmbedding node.

    Raises:
        ValueError: attributes or inputs that the contract does not know or allow.
    """
    values = {item.name: helper.get_attribute_value(item) for item in node.attribute}
    texts: dict[str, Any] = {
        key: value.decode() if isinstance(value, bytes) else value for key, value in values.items()
    }
    given = dict(zip(_INPUTS[node.op_type], node.input, strict=False))
    try:
        attributes = PackedAttributes(**texts)
        return form_of(attributes, bool(given.get("scales")), bool(given.get("mins")))
    except (TypeError, ValueError) as error:
        raise ValueError(f"node {node.name!r}: {error}") from error


def form_name(op: str, form: Form) -> str:
    """The name of an op's nodes of a form, where one model has several."""
    return op + form.capitalize()


def add_packed_bodies(model: onnx.ModelProto, rename: bool = False) -> None:
    """Give a model the bodies that its packed nodes need, and the domain's opset import.

    Args:
        model: changed in place.
        rename: name nodes and bodies by form (`form_name`), so that nodes may differ in it. A
            library that registers the op's own name alone no longer overrides them.

    Raises:
        ValueError: nodes break the contract, or differ in form and may not be renamed.
    """
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    forms: dict[tuple[str, Form], str] = {}
    for node in model.graph.node:
        if node.domain == DOMAIN and node.op_type in _INPUTS:
            op, form = node.op_type, node_form(node)
            forms.setdefault((op, form), node.name)
            if rename:
                node.op_type = form_name(op, form)
    for op in _INPUTS:
        names = [name for (other, _), name in forms.items() if other == op]
        if len(names) > 1 and not rename:
            raise ValueError(f"{op} nodes {', '.join(map(repr, names))} differ in form")
    for op, form in forms:
        name = form_name(op, form) if rename else op
        for old in [f for f in model.functions if (f.domain, f.name) == (DOMAIN, name)]:
            model.functions.remove(old)
        model.functions.append(packed_function(op, form, opset, name))
    if forms and all(item.domain != DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
