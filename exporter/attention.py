"""Attention as one traced op: what transformers' attention interface calls during an export.

transformers hands every attention layer to the function registered in `AttentionInterface`. Ours
records the call (heads, window, scale ...) and emits one opaque torch op per layer, which the ONNX
translation turns into `ortloom::PagedAttention`. The op is declared functional: the pools come back
as fresh outputs, so the tracer orders layers by data flow and never sees a mutation.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface

from ortloom.errors import UnsupportedModel

INTERFACE_NAME = "ortloom_paged"
"""The name under which the function is registered. It is not registered in the mask interface, so
transformers builds no mask and hands `attention_mask=None`."""

ABSENT: Any = object()
"""Default of optional keywords. A keyword passed as None is not an absent one: some architectures
pass `sliding_window=None` on full layers while the module still has a `sliding_window`."""

IGNORED_KEYWORDS = frozenset(
    {"dropout", "position_ids", "use_cache", "cache_position", "output_router_logits"}
)
"""Keywords that carry nothing for an inference without padding and without a cache object."""


@dataclass(frozen=True)
class AttentionCall:
    """Facts of one traced attention layer. Sizes in elements; window in tokens, itself included."""

    layer: int
    num_heads: int
    kv_heads: int
    head_dim_k: int
    head_dim_v: int
    scale: float
    window: int | None
    softcap: float
    sinks: bool


@dataclass
class StepTensors:
    """The step inputs of design.md §2 during one forward pass, and what was seen in it."""

    cu_seqlens: torch.Tensor
    past_seqlens: torch.Tensor
    block_table: torch.Tensor
    slot_mapping: torch.Tensor
    k_caches: list[torch.Tensor]
    v_caches: list[torch.Tensor]
    k_out: dict[int, torch.Tensor] = field(default_factory=dict)
    v_out: dict[int, torch.Tensor] = field(default_factory=dict)
    calls: list[AttentionCall] = field(default_factory=list)


@torch.library.custom_op("ortloom_export::paged_attention", mutates_args=())  # type: ignore[untyped-decorator]
def paged_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    cu_seqlens: torch.Tensor,
    past_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_sink: torch.Tensor | None,
    num_heads: int,
    kv_num_heads: int,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stands for `ortloom::PagedAttention` in a torch graph; it has no torch kernel.

    Shapes as in kernels/contract.py; `window` -1 = full attention.
    """
    raise NotImplementedError("this op only exists inside a traced graph")


@paged_attention.register_fake  # type: ignore[untyped-decorator]
def _paged_attention_shapes(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    cu_seqlens: torch.Tensor,
    past_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    slot_mapping: torch.Tensor,
    head_sink: torch.Tensor | None,
    num_heads: int,
    kv_num_heads: int,
    scale: float,
    softcap: float,
    window: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    width = value.shape[1] // kv_num_heads * num_heads
    out = query.new_empty(query.shape[0], width)
    return out, torch.empty_like(key_cache), torch.empty_like(value_cache)


def _packed(heads_first: torch.Tensor) -> torch.Tensor:
    """[1, H, T, D] → [T, H*D]."""
    _, heads, _, dim = heads_first.shape
    return heads_first.transpose(1, 2).reshape(-1, heads * dim)


class AttentionTracer:
    """The function behind `INTERFACE_NAME` during one trace; `step` is set by the forward pass."""

    def __init__(self) -> None:
        self.step: StepTensors | None = None

    def register(self) -> None:
        """Make this tracer the registered function (process-global until the next one)."""
        AttentionInterface.register(INTERFACE_NAME, self)

    def calls(self) -> tuple[AttentionCall, ...]:
        """The attention calls of the last forward pass, in layer order."""
        if self.step is None:
            return ()
        return tuple(sorted(self.step.calls, key=lambda call: call.layer))

    def __call__(
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        sliding_window: int | None = ABSENT,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        **keywords: object,
    ) -> tuple[torch.Tensor, None]:
        """Record and emit one layer's attention.

        Raises:
            UnsupportedModel: an attention keyword, mask or shape the op does not have.
        """
        step = self.step
        if step is None:
            raise RuntimeError("attention was called outside of a packed forward pass")
        layer = int(module.layer_idx)
        name = type(module).__name__
        unknown = sorted(
            k for k, v in keywords.items() if k not in IGNORED_KEYWORDS and v is not None
        )
        if unknown:
            raise UnsupportedModel(
                f"{name} passes the attention argument '{unknown[0]}', which is not supported"
            )
        if attention_mask is not None:
            raise UnsupportedModel(f"{name} builds its own attention mask, which is not supported")
        if getattr(module, "is_causal", True) is False:
            raise UnsupportedModel(f"{name} is not causal, which is not supported")
        if sliding_window is ABSENT:
            sliding_window = getattr(module, "sliding_window", None)
        if layer in step.k_out:
            raise UnsupportedModel(f"{name} attends twice in layer {layer}")
        heads, kv_heads = query.shape[1], key.shape[1]
        dim_k, dim_v = int(key.shape[3]), int(value.shape[3])
        call = AttentionCall(
            layer=layer,
            num_heads=int(heads),
            kv_heads=int(kv_heads),
            head_dim_k=dim_k,
            head_dim_v=dim_v,
            scale=float(dim_k**-0.5 if scaling is None else scaling),
            window=None if sliding_window is None else int(sliding_window),
            softcap=float(softcap or 0.0),
            sinks=s_aux is not None,
        )
        out, k_out, v_out = torch.ops.ortloom_export.paged_attention(
            _packed(query),
            _packed(key),
            _packed(value),
            step.k_caches[layer],
            step.v_caches[layer],
            step.cu_seqlens,
            step.past_seqlens,
            step.block_table,
            step.slot_mapping,
            s_aux,
            call.num_heads,
            call.kv_heads,
            call.scale,
            call.softcap,
            -1 if call.window is None else call.window,
        )
        step.calls.append(call)
        step.k_out[layer], step.v_out[layer] = k_out, v_out
        return out.view(1, -1, heads, dim_v), None
