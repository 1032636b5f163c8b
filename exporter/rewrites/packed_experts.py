"""Experts with plain parameters → ortloom::PackedExperts over panels, scales and minima."""

from collections.abc import Mapping

import onnx_ir as ir

from ortloom.exporter.experts import EXPERTS
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.rewrites import edit
from ortloom.exporter.rewrites.packed_linear import packed_operands
from ortloom.kernels.contract import DOMAIN
from ortloom.kernels.experts_contract import PACKED_EXPERTS

KINDS = {"gate_up": 3, "down": 4}
"""Prefix of the op's inputs and attributes → place of the parameter in the traced node."""


def pack_experts(graph: ir.Graph, forms: Mapping[str, PackedForm]) -> set[str]:
    """Replace the expert layers; returns the names of the parameters replaced.

    Args:
        graph: changed in place.
        forms: stored form of every expert parameter.
    """
    done: set[str] = set()
    for node in list(graph):
        if (node.domain, node.op_type) != (DOMAIN, EXPERTS):
            continue
        inputs: list[ir.Value | None] = list(node.inputs[:3])
        attributes: dict[str, int | str] = {"activation": node.attributes["activation"].as_string()}
        for kind, place in KINDS.items():
            parameter = node.inputs[place]
            name = "" if parameter is None else str(parameter.name)
            shape = tuple(int(d or 0) for d in edit.dims(parameter) or ())
            inputs += packed_operands(graph, name, forms[name], shape)
            attributes[f"{kind}_format"] = forms[name].format
            attributes[f"{kind}_block_size"] = forms[name].block_size
            if kind == "down":
                attributes |= {"experts": shape[0], "K": shape[1], "I": shape[2]}
            done.add(name)
        while inputs[-1] is None:
            inputs.pop()
        made = edit.new_node(graph, node, PACKED_EXPERTS, inputs, attributes, domain=DOMAIN)
        edit.same_type(made.outputs[0], node.outputs[0])
        edit.replace(node.outputs[0], made.outputs[0])
    edit.sweep(graph)
    return done
