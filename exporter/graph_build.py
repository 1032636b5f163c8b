"""Config → contract graph with its weight layout."""

from dataclasses import dataclass, replace
from typing import Any

import onnx_ir as ir
from transformers import CONFIG_MAPPING, PreTrainedConfig

from ortloom.errors import SourceInvalid
from ortloom.exporter.attention import AttentionCall
from ortloom.exporter.balance import BalancedRows, balance
from ortloom.exporter.canonical import canonicalise, number_nodes
from ortloom.exporter.form_choice import choose_form
from ortloom.exporter.layer_kinds import LayerPlan, plan_layers
from ortloom.exporter.options import Storage
from ortloom.exporter.packed_form import PackedForm
from ortloom.exporter.packed_weights import experts_job, packed_job
from ortloom.exporter.parameters import require_parameters
from ortloom.exporter.progress import Progress
from ortloom.exporter.quiet import quiet_libraries
from ortloom.exporter.rewrites.fused_qkv import joined_weights
from ortloom.exporter.rewrites.gated_linear import joined_gates
from ortloom.exporter.rewrites.norm_readers import norm_readers
from ortloom.exporter.rewrites.packed_experts import pack_experts
from ortloom.exporter.rewrites.packed_linear import linear_weight, pack_linears
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.stamp import layer_of, renumber, stamp_layers
from ortloom.exporter.trace import Trace, trace
from ortloom.exporter.translate import translate
from ortloom.exporter.variants import reference_weights
from ortloom.exporter.weights import WeightLayout, array_job, plain_job

BALANCED = frozenset({"int8"})
"""Values of `Storage.quant` for which `balance` moves factors. With 4 bits the error of the weights
is all that counts, and a matrix whose own values lie on a grid fits its blocks best as it is."""


@dataclass(frozen=True)
class ContractGraph:
    """The contract graph, its weights' layout, what the trace showed, and the source's values as
    they are stored."""

    model: ir.Model
    layout: WeightLayout
    calls: tuple[AttentionCall, ...]
    parameters: dict[str, tuple[int, ...]]
    ties: dict[str, str]
    forms: dict[str, PackedForm]
    source: BalancedRows

    @property
    def excluded(self) -> tuple[str, ...]:
        """Matrices that are not stored as codes, sorted."""
        matrices = (n for n, s in self.parameters.items() if len(s) >= 2)
        return tuple(sorted(n for n in matrices if not self.is_quantised(n)))

    def is_quantised(self, name: str) -> bool:
        """Whether a parameter is stored as codes with scales."""
        return name in self.forms and self.forms[name].quantised

    @property
    def balanced(self) -> int:
        """Norms whose gain gave factors to matrices, see `balance`."""
        return sum(1 for name in self.source.factors if len(self.parameters[name]) == 1)

    def parameter_count(self) -> int:
        """Elements of all parameters, tied ones once."""
        total = 0
        for shape in self.parameters.values():
            size = 1
            for dim in shape:
                size *= dim
            total += size
        return total


def make_config(config: dict[str, Any]) -> PreTrainedConfig:
    """Transformers' config object of a config dict; never runs code of the checkpoint.

    Raises:
        SourceInvalid: transformers refuses the values.
    """
    # A loss of routers is computed beside the logits if asked for.
    config = {key: value for key, value in config.items() if key != "output_router_logits"}
    try:
        made: PreTrainedConfig = CONFIG_MAPPING[config["model_type"]].from_dict(config)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise SourceInvalid(f"config.json is refused by transformers: {reason}") from error
    return made


def whole_trace(traced: Trace, plan: LayerPlan) -> Trace:
    """Parameters and calls of all layers, from those of the traced ones."""
    if plan.is_whole:
        return traced
    shapes: dict[str, tuple[int, ...]] = {}
    calls = []
    by_layer: dict[int | None, list[str]] = {}
    for name in traced.parameters:
        by_layer.setdefault(layer_of(name), []).append(name)
    shapes.update((n, traced.parameters[n]) for n in by_layer.pop(None, []))
    for layer, source in enumerate(plan.model_of):
        calls.append(replace(traced.calls[source], layer=layer))
        for name in by_layer[source]:
            shapes[renumber(name, layer)] = traced.parameters[name]
    return replace(traced, calls=tuple(calls), parameters=shapes)


def build_contract(
    config: dict[str, Any],
    storage: Storage,
    checkpoint: Checkpoint,
    progress: Progress,
) -> ContractGraph:
    """Trace, translate, rewrite and lay out the weights.

    Args:
        config: Hugging Face config.
        storage: how matrices are stored.
        checkpoint: the source; its rows are read when the layout is written.
        progress: told about the phases.

    Raises:
        UnsupportedModel: see `trace` and `canonicalise`.
        SourceInvalid: a parameter is missing from the source, has another shape, or cannot be read.
    """
    with quiet_libraries():
        made = make_config(config)
        layers = plan_layers(made)
        progress.phase("trace")
        traced = trace(layers.config)
        progress.phase("translate")
        model = translate(traced)
    progress.phase("rewrite")
    tables = canonicalise(model, len(layers.traced), int(made.max_position_embeddings))
    traced = whole_trace(traced, layers)
    require_parameters(checkpoint, traced.parameters, traced.ties)
    if not layers.is_whole:
        model = stamp_layers(model, layers)
    linears = {linear_weight(node) for node in model.graph}
    forms = {}
    for name, shape in traced.parameters.items():
        form = choose_form(
            name, shape, read_as_linear=name in linears, storage=storage, checkpoint=checkpoint
        )
        if form is not None:
            forms[name] = form
    source = BalancedRows(checkpoint)
    if storage.quant in BALANCED:
        progress.phase("balance")
        readers = norm_readers(model.graph)
        source = BalancedRows(checkpoint, balance(checkpoint, config, readers, forms))
    packed = pack_linears(model.graph, forms) | pack_experts(model.graph, forms)
    number_nodes(model.graph)
    layout = WeightLayout(joined=joined_weights(model.graph) + joined_gates(model.graph))
    for name, shape in traced.parameters.items():
        if name in packed and len(shape) == 3:
            layout.jobs.append(
                experts_job(name, forms[name], shape[0:3], source.expert_rows, source.expert_blocks)
            )
        elif name in packed:
            size = (shape[0], shape[1])
            layout.jobs.append(packed_job(name, forms[name], size, source.rows, source.block_rows))
        elif name in model.graph.initializers:
            layout.jobs.append(plain_job(name, shape, source.rows))
    for name, array in tables.items():
        layout.jobs.append(array_job(name, array))
    reference_weights(model, layout)
    forms = {name: form for name, form in forms.items() if name in packed}
    return ContractGraph(model, layout, traced.calls, traced.parameters, traced.ties, forms, source)
