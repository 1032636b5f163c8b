"""The body of `ortloom::SkipRMSNorm` out of standard ONNX ops.

One body serves nodes that all give `skip`, or all leave it out (one name has one body, see
`function_body`); epsilon may differ. Every node gets a name for its second output: where one is
left out, ONNX Runtime refuses the body (1.32) or crashes (1.23). Rows are bitwise the same in any
batch from ONNX Runtime 1.23 on (1.19: ReduceMean is not).
"""

import onnx
from onnx import helper

from ortloom.kernels.body_builder import BodyBuilder
from ortloom.kernels.body_heads import rms_norm
from ortloom.kernels.contract import DOMAIN, DOMAIN_VERSION
from ortloom.kernels.norm_contract import (
    NORM_INPUTS,
    NORM_OUTPUTS,
    SKIP_RMS_NORM,
    NormAttributes,
)

DEFAULT_OPSET = 23
MIN_OPSET = 18


def skip_rms_norm_function(
    has_skip: bool, opset: int = DEFAULT_OPSET, name: str | None = None
) -> onnx.FunctionProto:
    """The body for nodes with or without `skip`.

    Args:
        has_skip: whether the nodes give it.
        opset: of the standard ops, 18 or newer; the model's own.
        name: of the function; the op's by default, which lets a registered op override it.

    Raises:
        ValueError: the opset is too old.
    """
    if opset < MIN_OPSET:
        raise ValueError(f"opset {opset} is too old; the body needs {MIN_OPSET}")
    b = BodyBuilder()
    if has_skip:
        total = b.op("Add", "x", "skip", out="sum")
    else:
        total = b.op("Identity", "x", out="sum")
    b.op("Identity", rms_norm(b, total, "gamma", b.real("epsilon")), out="y")
    return helper.make_function(
        DOMAIN,
        name if name is not None else SKIP_RMS_NORM,
        list(NORM_INPUTS),
        list(NORM_OUTPUTS),
        b.nodes,
        [helper.make_opsetid("", opset)],
        attribute_protos=[helper.make_attribute("epsilon", NormAttributes().epsilon)],
    )


def add_skip_norm_body(model: onnx.ModelProto) -> None:
    """Give a model the body that its SkipRMSNorm nodes need, and the domain's opset import.

    Nodes without the output `sum` get it, under the name `<y>_sum`.

    Raises:
        ValueError: some nodes give `skip` and some do not, or one has another attribute.
    """
    nodes = [n for n in model.graph.node if n.domain == DOMAIN and n.op_type == SKIP_RMS_NORM]
    for node in nodes:
        unknown = [item.name for item in node.attribute if item.name != "epsilon"]
        if unknown:
            raise ValueError(f"node {node.name!r} has unknown attributes {unknown}")
        if len(node.output) < 2 or not node.output[1]:
            node.output[:] = [node.output[0], f"{node.output[0]}_sum"]
    given = {bool(node.input[1]): node.name for node in nodes}
    if len(given) > 1:
        raise ValueError(
            f"{SKIP_RMS_NORM} nodes {given[True]!r} and {given[False]!r} differ in skip"
        )
    if not nodes:
        return
    for old in [f for f in model.functions if (f.domain, f.name) == (DOMAIN, SKIP_RMS_NORM)]:
        model.functions.remove(old)
    opset = next((item.version for item in model.opset_import if item.domain == ""), 1)
    model.functions.append(skip_rms_norm_function(True in given, opset))
    if all(item.domain != DOMAIN for item in model.opset_import):
        model.opset_import.append(helper.make_opsetid(DOMAIN, DOMAIN_VERSION))
