"""Softmax, top-k and the division by their sum, in front of experts → ortloom::ExpertRouting."""

from dataclasses import dataclass

import onnx_ir as ir

from ortloom.errors import UnsupportedModel
from ortloom.exporter.experts import EXPERTS
from ortloom.exporter.rewrites import edit
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.experts_contract import EXPERT_ROUTING


@dataclass(frozen=True)
class _Routing:
    logits: ir.Value
    top_k: int
    normalize: bool


def _uncast(value: ir.Value | None) -> ir.Value | None:
    """What a cast to fp32 reads, for logits that are fp32 anyway."""
    cast = edit.producer(value, "Cast")
    if cast is not None and edit.integer(cast, "to", 0) == ir.DataType.FLOAT:
        return cast.inputs[0]
    return value


def _is_last(axis: int) -> bool:
    return axis in (-1, 1)


def _normalised(value: ir.Value | None) -> ir.Value | None:
    """The x of a `value` = x / ReduceSum(x) along the last axis."""
    division = edit.producer(value, "Div")
    if division is None:
        return None
    x, total = division.inputs[0], edit.producer(division.inputs[1], "ReduceSum")
    if total is None or total.inputs[0] is not x or edit.integer(total, "keepdims", 1) != 1:
        return None
    axes = edit.constant(total.inputs[1]) if len(total.inputs) > 1 else None
    return x if axes is not None and axes.size == 1 and _is_last(int(axes[0])) else None


def _routing(experts: ir.Node) -> _Routing | None:
    ids, weights = experts.inputs[1], experts.inputs[2]
    scores = _normalised(weights)
    chosen = edit.producer(weights if scores is None else scores, "TopK")
    if chosen is None or chosen.outputs[1] is not ids:
        return None
    if chosen.outputs[0] is not (weights if scores is None else scores):
        return None
    count = edit.constant(chosen.inputs[1])
    flags = [edit.integer(chosen, name, 1) for name in ("largest", "sorted")]
    softmax = edit.producer(_uncast(chosen.inputs[0]), "Softmax")
    if count is None or count.size != 1 or flags != [1, 1] or softmax is None:
        return None
    axes = edit.integer(chosen, "axis", -1), edit.integer(softmax, "axis", -1)
    logits = _uncast(softmax.inputs[0])
    if not all(_is_last(axis) for axis in axes) or logits is None:
        return None
    return _Routing(logits, int(count.reshape(-1)[0]), scores is not None)


def fuse_routing(graph: ir.Graph) -> int:
    """Returns how many layers of experts were given a routing node.

    Raises:
        UnsupportedModel: experts are chosen in another way.
    """
    layers = [node for node in graph if (node.domain, node.op_type) == (DOMAIN, EXPERTS)]
    for experts in layers:
        found = _routing(experts)
        if found is None:
            raise UnsupportedModel(
                "experts are not chosen by a softmax over all of them and its largest values, "
                "which is the only routing supported"
            )
        made = edit.new_node(
            graph,
            experts,
            EXPERT_ROUTING,
            [found.logits],
            {"top_k": found.top_k, "normalize": int(found.normalize)},
            domain=DOMAIN,
            num_outputs=2,
        )
        for place, kind in ((1, ir.DataType.INT64), (2, ir.DataType.FLOAT)):
            out = made.outputs[place - 1]
            out.type, out.shape = ir.TensorType(kind), ir.Shape([None, found.top_k])
            experts.replace_input_with(place, out)
    edit.sweep(graph)
    return len(layers)
