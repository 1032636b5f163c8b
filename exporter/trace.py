"""transformers' own modelling code → an ATen graph, without weights.

The model is built under a fake-tensor mode (parameters have shapes but no storage), so tracing an
8B model needs no more memory than a tiny one. Buffers that modules compute themselves (rotary
frequencies) are rebuilt for real, since their values belong in the graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram
from transformers import AutoModelForCausalLM, PreTrainedConfig

from ortloom.errors import UnsupportedModel
from ortloom.exporter import experts
from ortloom.exporter.attention import INTERFACE_NAME, AttentionCall, AttentionTracer, StepTensors

EXAMPLE_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Trace:
    """A traced model.

    `calls` has one entry per attention layer, in layer order. `parameters` maps each parameter name
    to its shape; a tied parameter appears under its first name only, `ties` maps the others to it.
    """

    program: ExportedProgram
    calls: tuple[AttentionCall, ...]
    parameters: dict[str, tuple[int, ...]]
    ties: dict[str, str]


class PackedModel(torch.nn.Module):  # type: ignore[misc]
    """The causal LM over packed tokens, with the graph signature of design.md §2."""

    def __init__(self, model: torch.nn.Module, tracer: AttentionTracer) -> None:
        super().__init__()
        self.model = model
        self.tracer = tracer

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        cu_seqlens: torch.Tensor,
        past_seqlens: torch.Tensor,
        block_table: torch.Tensor,
        slot_mapping: torch.Tensor,
        logits_indices: torch.Tensor,
        k_caches: list[torch.Tensor],
        v_caches: list[torch.Tensor],
    ) -> tuple[torch.Tensor, list[torch.Tensor], list[torch.Tensor]]:
        """One step; see `StepTensors` and manifest.GraphIO for shapes."""
        step = StepTensors(cu_seqlens, past_seqlens, block_table, slot_mapping, k_caches, v_caches)
        self.tracer.step = step
        logits = self.model(
            input_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=logits_indices,
        ).logits
        missing = [i for i in range(len(k_caches)) if i not in step.k_out]
        if missing:
            raise UnsupportedModel(
                f"layer {missing[0]} of {type(self.model).__name__} does not call the attention "
                "interface of transformers"
            )
        order = range(len(k_caches))
        return logits[0], [step.k_out[i] for i in order], [step.v_out[i] for i in order]


def build_fake_model(config: PreTrainedConfig) -> tuple[torch.nn.Module, FakeTensorMode]:
    """The causal LM of a config with fake parameters and real computed buffers.

    Raises:
        UnsupportedModel: transformers has no causal LM for the config, or refuses its values.
    """
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with mode, _no_init():
            model = AutoModelForCausalLM.from_config(
                config,
                attn_implementation=INTERFACE_NAME,
                experts_implementation=experts.INTERFACE_NAME,
                dtype=torch.float32,
            )
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"transformers cannot build a causal language model for model_type "
            f"'{config.model_type}': {error}"
        ) from error
    model.tie_weights()
    model.eval()
    model.requires_grad_(False)
    for name, module in list(model.named_modules()):
        own = [n for n, _ in module.named_buffers(recurse=False)]
        if not own:
            continue
        fresh = type(module)(config=module.config)
        for buffer in own:
            setattr(module, buffer, getattr(fresh, buffer))
        if any(True for _ in module.parameters(recurse=False)):
            raise UnsupportedModel(f"module '{name}' mixes parameters and computed buffers")
    return model, mode


@contextmanager
def _no_init() -> Iterator[None]:
    from transformers.initialization import no_init_weights

    with no_init_weights():
        yield


def _parameters(model: torch.nn.Module) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    shapes: dict[str, tuple[int, ...]] = {}
    ties: dict[str, str] = {}
    first: dict[int, str] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if id(parameter) in first:
            ties[name] = first[id(parameter)]
        else:
            first[id(parameter)] = name
            shapes[name] = tuple(int(d) for d in parameter.shape)
    return shapes, ties


def example_inputs(config: PreTrainedConfig, kv: list[tuple[int, int, int]]) -> tuple[Any, ...]:
    """Step inputs of pairwise different sizes above 1 (equal sizes would be tied together).

    Args:
        config: the model config (for the layer count).
        kv: (kv heads, key head size, value head size) of each layer.
    """
    tokens, requests, blocks, rows, pool = 7, 3, 4, 5, 11
    i32 = torch.int32
    return (
        torch.zeros(tokens, dtype=torch.int64),
        torch.arange(tokens, dtype=torch.int64),
        torch.tensor([0, 2, 4, tokens], dtype=i32),
        torch.zeros(requests, dtype=i32),
        torch.zeros(requests, blocks, dtype=i32),
        torch.zeros(tokens, dtype=i32),
        torch.arange(rows, dtype=torch.int64),
        [torch.zeros(pool, EXAMPLE_BLOCK_SIZE, h, dk) for h, dk, _ in kv],
        [torch.zeros(pool, EXAMPLE_BLOCK_SIZE, h, dv) for h, _, dv in kv],
    )


def _dynamic_shapes(layers: int) -> tuple[Any, ...]:
    tokens = Dim("T", min=1)
    rows = Dim("N", min=1)
    pool = {0: Dim("num_blocks", min=1), 1: Dim("block_size", min=1)}
    return (
        {0: tokens},
        {0: tokens},
        {0: Dim.DYNAMIC},
        {0: Dim.DYNAMIC},
        {0: Dim.DYNAMIC, 1: Dim.DYNAMIC},
        {0: tokens},
        {0: rows},
        [pool] * layers,
        [pool] * layers,
    )


def trace(config: PreTrainedConfig) -> Trace:
    """Trace the causal LM of a config.

    Raises:
        UnsupportedModel: the architecture or a feature of it cannot be exported; names the feature.
    """
    tracer = AttentionTracer()
    tracer.register()
    experts.register_experts()
    model, mode = build_fake_model(config)
    layers = int(config.num_hidden_layers)
    kv_heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    head = int(
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    packed = PackedModel(model, tracer)
    inputs = example_inputs(config, [(kv_heads, head, head)] * layers)
    with torch.no_grad():
        fakes = torch.utils._pytree.tree_map(mode.from_tensor, inputs)
        program = torch.export.export(
            packed, fakes, dynamic_shapes=_dynamic_shapes(layers), strict=False
        )
    calls = tracer.calls()
    shapes, ties = _parameters(model)
    return Trace(program, calls, shapes, ties)
