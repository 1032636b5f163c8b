"""x W^T for a packed W out of standard ONNX ops: what the bodies of our packed ops share.

Activations are rounded as `packed_contract` says and are then multiplied by the fp32 values of the
weights. A function's attributes are read through references; the names of inputs and attributes of
a matrix are given as `Operands`, so a body may have several matrices.

Batching: a row of zeros is appended to x and dropped again, since a single row takes another path
through MLAS than two, with other roundings; no row looks at another otherwise.
"""

from dataclasses import dataclass
from typing import Literal

import onnx
from onnx import TensorProto, helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.packed_contract import ACTIVATION_GROUP, ZERO
from ortloom.kernels.packing import CODE_LANES

Form = Literal["float", "symmetric", "minima"]
"""Which of scales and minima a matrix has: neither, scales, both."""

_GELU_CUBE, _GELU_TANH = 0.044715, 0.7978845608028654  # sqrt(2 / pi)


@dataclass(frozen=True)
class Operands:
    """Names of a matrix' panels, scales and minima and of the function's attributes for it.

    `prefix` tells apart the results inside subgraphs of bodies with several matrices.
    """

    weight: str = "weight"
    scales: str = "scales"
    mins: str = "mins"
    format: str = "format"
    block_size: str = "block_size"
    prefix: str = ""


def is_text(b: BodyBuilder, attribute: str, text: str) -> str:
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


def codes_of(b: BodyBuilder, w: Operands, packed: str, axis: int) -> str:
    """Packed bytes → codes uint8 with a new axis: the codes of a byte (one or two)."""
    two, one = BodyBuilder(f"{w.prefix}two_"), BodyBuilder(f"{w.prefix}one_")
    return _choose(
        b,
        is_text(b, w.format, "u4"),
        TensorProto.UINT8,
        (two, _nibbles(two, packed, axis)),
        (one, one.unsqueeze(packed, axis)),
    )


def _zero(b: BodyBuilder, w: Operands) -> str:
    """The zero point that the format implies, a scalar."""
    is_u4 = is_text(b, w.format, "u4")
    return b.op("Where", is_u4, b.number(ZERO["u4"]), b.number(ZERO["u8"]))


def values_of(b: BodyBuilder, w: Operands, codes: str, scales: str, mins: str | None) -> str:
    """Values of codes uint8, scales and minima of shapes that broadcast."""
    codes, scales = b.float32(codes), b.float32(scales)
    if mins is None:
        return b.op("Mul", b.op("Sub", codes, _zero(b, w)), scales)
    return b.op("Add", b.op("Mul", codes, scales), b.float32(mins))


def _float_weight(b: BodyBuilder, w: Operands, rows: str, width: str) -> str:
    """W fp32 [N, K] of a floating format."""
    weight = b.op("Transpose", w.weight, perm=[0, 2, 1])
    return b.float32(b.slice(b.reshape(weight, b.ints(-1), width), b.ints(0), rows))


def _quantised_weight(
    b: BodyBuilder, w: Operands, form: Form, rows: str, width: str, share: str
) -> str:
    """W fp32 [N, K] of a quantised format, K in the order (code of the byte, group, lane).

    That order leaves the nibbles of a row in two runs; `_reorder` gives x the same one.
    """
    block = b.integers(w.block_size)
    blocks = b.op("Div", width, block)

    def by_row(panels: str) -> str:
        turned = b.reshape(
            b.op("Transpose", panels, perm=[0, 2, 1]), b.ints(-1, 1), blocks, b.ints(1)
        )
        return b.slice(turned, b.ints(0), rows)

    codes = codes_of(b, w, b.op("Transpose", w.weight, perm=[0, 2, 1, 3]), 2)
    codes = b.reshape(codes, b.ints(-1), share, blocks, b.op("Div", block, share))
    codes = b.slice(codes, b.ints(0), rows)
    mins = by_row(w.mins) if form == "minima" else None
    return b.reshape(values_of(b, w, codes, by_row(w.scales), mins), rows, width)


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


def product(
    b: BodyBuilder, x: str, w: Operands, form: Form, rows: str, width: str, bias: str = ""
) -> str:
    """The product x W^T + bias [T, N].

    Args:
        b: collects the nodes.
        x: [T, K] f32.
        w: names of the matrix.
        form: of the matrix.
        rows: N as a 1-D tensor of one element.
        width: K, likewise.
        bias: [N] f32, or "" for none.
    """
    tokens = b.dim(x, 0)
    padded = b.concat(x, b.op("Expand", b.number(0.0), b.concat(b.ints(1), width)))
    if form == "float":
        weight = _float_weight(b, w, rows, width)
    else:
        groups = b.dim(w.weight, 1)
        share = b.op("Div", width, b.op("Mul", groups, b.ints(CODE_LANES)))
        rounded = _rounded_activations(b, padded, width)
        padded = _reorder(b, rounded, width, groups, share)
        weight = _quantised_weight(b, w, form, rows, width, share)
    operands = [padded, weight, bias] if bias else [padded, weight]
    return b.slice(b.op("Gemm", *operands, transB=1), b.ints(0), tokens)


def activated(b: BodyBuilder, y: str, rows: str) -> str:
    """act(gate) * up if the function's attribute `activation` is set, else y itself.

    Args:
        b: collects the nodes.
        y: [T, N] f32, the gate's columns before those of the up projection.
        rows: N as a 1-D tensor of one element.
    """
    plain, gated = BodyBuilder("plain_"), BodyBuilder("gated_")
    return _choose(
        b, is_text(b, "activation", ""), TensorProto.FLOAT,
        (plain, plain.op("Identity", y)), (gated, gate_times_up(gated, y, rows)),
    )  # fmt: skip


def gate_times_up(b: BodyBuilder, y: str, rows: str) -> str:
    """act(gate) * up by the attribute `activation`, which is set; arguments as of `activated`."""
    half = b.op("Div", rows, b.ints(2))
    gate = b.slice(y, b.ints(0), half, axis=1)
    up = b.slice(y, half, rows, axis=1)
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
        gelu, is_text(gelu, "activation", "gelu"), TensorProto.FLOAT,
        (erf, erf_result), (tanh, tanh_result),
    )  # fmt: skip
    acted = _choose(
        b, is_text(b, "activation", "silu"), TensorProto.FLOAT,
        (silu, silu_result), (gelu, gelu_result),
    )  # fmt: skip
    return b.op("Mul", acted, up)


def _half_of_one_plus(b: BodyBuilder, gate: str, bent: str) -> str:
    """0.5 * gate * (1 + bent)."""
    half = b.op("Mul", gate, b.number(0.5))
    return b.op("Mul", half, b.op("Add", bent, b.number(1.0)))
