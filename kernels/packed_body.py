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
from typing import Any

import onnx
from onnx import helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.packed_contract import (
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
from ortloom.kernels.packed_product_body import (
    Form,
    Operands,
    activated,
    codes_of,
    product,
    values_of,
)
from ortloom.kernels.packing import check_block_size

DEFAULT_OPSET = 23
MIN_OPSET = 18  # BitwiseAnd

_INPUTS = {PACKED_LINEAR: LINEAR_INPUTS, PACKED_EMBEDDING: EMBEDDING_INPUTS}
_OUTPUTS = {PACKED_LINEAR: LINEAR_OUTPUTS, PACKED_EMBEDDING: EMBEDDING_OUTPUTS}
_REQUIRED = ("format", "N", "K")


def _linear(form: Form) -> list[onnx.NodeProto]:
    b = BodyBuilder()
    rows, width = b.integers("N"), b.integers("K")
    y = product(b, "x", Operands(), form, rows, width, "bias")
    b.op("Identity", activated(b, y, rows), out="y")
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
        codes = codes_of(b, Operands(), gathered("weight", [0, 2, 1, 3]), 2)
        codes = b.reshape(codes, count, blocks, block)
        scales = b.unsqueeze(gathered("scales", [0, 2, 1]), 2)
        mins = b.unsqueeze(gathered("mins", [0, 2, 1]), 2) if form == "minima" else None
        values = b.reshape(values_of(b, Operands(), codes, scales, mins), count, width)
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
