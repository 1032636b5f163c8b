"""ATen graph → ONNX (onnx_ir model), with our own translations for attention and linear layers."""

from collections.abc import Callable
from typing import Any

import onnx
import onnx_ir as ir
import torch
from onnxscript import opset23 as op
from onnxscript import values

from ortloom.errors import UnsupportedModel
from ortloom.exporter.experts import EXPERTS
from ortloom.exporter.trace import Trace
from ortloom.kernels import contract

OPSET = 23
"""Default-domain opset of all graphs: the newest that every runtime in range knows."""


def _schema() -> onnx.defs.OpSchema:
    schema = onnx.defs.OpSchema
    option = schema.FormalParameterOption
    integers = {
        "cumulative_sequence_length",
        "past_seqlens",
        "block_table",
        "slot_mapping",
        "attention_metadata",
    }
    inputs = [
        schema.FormalParameter(
            name,
            "I" if name in integers else "T",
            param_option=option.Optional if name in contract.OPTIONAL_INPUTS else option.Single,
        )
        for name in contract.INPUTS
    ]
    kinds = {int: onnx.AttributeProto.INT, float: onnx.AttributeProto.FLOAT}
    attributes = []
    for name, default in contract.PagedAttentionAttributes(0, 0).__dict__.items():
        kind = kinds.get(type(default), onnx.AttributeProto.STRING)
        attributes.append(onnx.helper.make_attribute(name, default, attr_type=kind))
    return schema(
        contract.PAGED_ATTENTION,
        contract.DOMAIN,
        contract.DOMAIN_VERSION,
        inputs=inputs,
        outputs=[schema.FormalParameter(name, "T") for name in contract.OUTPUTS],
        type_constraints=[("T", ["tensor(float)"], ""), ("I", ["tensor(int32)"], "")],
        attributes=[schema.Attribute(a.name, a) for a in attributes],
    )


def _experts_schema() -> onnx.defs.OpSchema:
    schema = onnx.defs.OpSchema
    names = ("x", "ids", "weights", "gate_up", "down")
    activation = onnx.helper.make_attribute("activation", "silu")
    return schema(
        EXPERTS,
        contract.DOMAIN,
        contract.DOMAIN_VERSION,
        inputs=[schema.FormalParameter(name, "I" if name == "ids" else "T") for name in names],
        outputs=[schema.FormalParameter("y", "T")],
        type_constraints=[("T", ["tensor(float)"], ""), ("I", ["tensor(int64)"], "")],
        attributes=[schema.Attribute("activation", activation)],
    )


def register_schemas() -> None:
    """Tell onnx our ops' schemas (needed by the ONNX builder); does nothing the second time."""
    for made in (_schema(), _experts_schema()):
        if not onnx.defs.has(made.name, contract.DOMAIN):
            onnx.defs.register_schema(made)


def _paged_attention(
    query: Any,
    key: Any,
    value: Any,
    key_cache: Any,
    value_cache: Any,
    cu_seqlens: Any,
    past_seqlens: Any,
    block_table: Any,
    slot_mapping: Any,
    head_sink: Any,
    num_heads: int,
    kv_num_heads: int,
    scale: float,
    softcap: float,
    window: int,
) -> Any:
    domain = values.Opset(contract.DOMAIN, contract.DOMAIN_VERSION)
    return domain.PagedAttention(
        query,
        key,
        value,
        key_cache,
        value_cache,
        cu_seqlens,
        past_seqlens,
        block_table,
        None,
        None,
        slot_mapping,
        head_sink,
        num_heads=num_heads,
        kv_num_heads=kv_num_heads,
        scale=scale,
        softcap=softcap,
        local_window_size=window,
    )


def _experts(x: Any, ids: Any, weights: Any, gate_up: Any, down: Any, activation: str) -> Any:
    domain = values.Opset(contract.DOMAIN, contract.DOMAIN_VERSION)
    return domain.Experts(x, ids, weights, gate_up, down, activation=activation)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`aten.linear` over packed rows: 2-D Gemm that reads HF's [out, in] weight as it lies."""
    rows = op.Reshape(x, op.Constant(value_ints=[-1, int(weight.shape[1])]))
    y = op.Gemm(rows, weight, transB=1) if bias is None else op.Gemm(rows, weight, bias, transB=1)
    leading = [1, -1] if len(x.shape) == 3 else [-1]
    return op.Reshape(y, op.Constant(value_ints=[*leading, int(weight.shape[0])]))


def _slice(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """`aten.slice` with integer bounds as one Slice node."""
    bounds = (0 if start is None else start, 2**63 - 1 if end is None else end)
    if not all(isinstance(bound, int) for bound in bounds):
        raise UnsupportedModel("a slice with bounds that depend on the sequence length")
    starts, ends = (op.Constant(value_ints=[int(bound)]) for bound in bounds)
    return op.Slice(x, starts, ends, op.Constant(value_ints=[dim]), op.Constant(value_ints=[step]))


def _index(x: Any, indices: Any) -> Any:
    """`aten.index` with one 1-D index tensor as Gather."""
    used = [(axis, index) for axis, index in enumerate(indices) if index is not None]
    if len(used) != 1 or len(used[0][1].shape) != 1:
        raise UnsupportedModel("indexing with more than one index tensor")
    return op.Gather(x, used[0][1], axis=used[0][0])


def translation_table() -> dict[Callable[..., Any], Callable[..., Any]]:
    """Our entries of the ONNX translation table."""
    return {
        torch.ops.ortloom_export.paged_attention.default: _paged_attention,
        torch.ops.ortloom_export.experts.default: _experts,
        torch.ops.aten.linear.default: _linear,
        torch.ops.aten.slice.Tensor: _slice,
        torch.ops.aten.index.Tensor: _index,
    }


def translate(traced: Trace) -> ir.Model:
    """The ONNX graph of a trace; parameters are initialisers without data."""
    register_schemas()
    program = torch.onnx.export(
        traced.program,
        custom_translation_table=translation_table(),
        opset_version=OPSET,
        dynamo=True,
        optimize=False,
        verbose=False,
    )
    if program is None:
        raise UnsupportedModel("the ONNX translation of torch returned nothing")
    model = program.model
    _name_parameters(model.graph, traced)
    _shape_linears(model.graph)
    return model


def _shape_linears(graph: ir.Graph) -> None:
    """State the output shape [rows, out] of every linear layer."""
    for node in graph:
        weight = node.inputs[1] if node.op_type == "Gemm" else None
        if weight is not None and weight.shape is not None:
            node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
            node.outputs[0].shape = ir.Shape([None, weight.shape[0]])


def _name_parameters(graph: ir.Graph, traced: Trace) -> None:
    """Give parameters their checkpoint names, merge tied ones, and drop the fake data."""
    for name, value in list(graph.initializers.items()):
        plain = name.removeprefix("model.")
        first = traced.ties.get(plain, plain)
        if not name.startswith("model.") or first not in traced.parameters:
            continue
        del graph.initializers[name]
        if first in graph.initializers:
            value.replace_all_uses_with(graph.initializers[first])
            continue
        value.const_value = None
        value.name = first
        graph.initializers[first] = value
