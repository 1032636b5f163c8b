"""Experts as one traced op: what transformers' experts interface calls during an export.

transformers hands the fused experts of every sparse layer (`gate_up_proj` [E, 2I, K], `down_proj`
[E, K, I], ids and weights of the routed ones) to the function registered in `ExpertsInterface`.
Ours emits one opaque torch op, which the ONNX translation turns into the node `EXPERTS`; the
rewrite `packed_experts` turns that into `ortloom::PackedExperts`.
"""

import torch
from transformers.integrations.moe import ExpertsInterface, _default_apply_gate

from ortloom.errors import UnsupportedModel

INTERFACE_NAME = "ortloom_experts"
"""The name under which the function is registered."""

EXPERTS = "Experts"
"""The node of the translated graph: x, ids, weights, gate_up_proj, down_proj → y."""

ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
}
"""Class of an activation module → the op's name for it."""


@torch.library.custom_op("ortloom_export::experts", mutates_args=())  # type: ignore[untyped-decorator]
def experts(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    """Stands for the node `EXPERTS` in a torch graph; it has no torch kernel."""
    raise NotImplementedError("this op only exists inside a traced graph")


@experts.register_fake  # type: ignore[untyped-decorator]
def _experts_shape(
    x: torch.Tensor,
    ids: torch.Tensor,
    weights: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
    activation: str,
) -> torch.Tensor:
    return torch.empty_like(x)


def _require_plain(module: torch.nn.Module) -> str:
    """The activation of an experts module that is the op's formula.

    Raises:
        UnsupportedModel: it has biases, norms, another gate, layout or activation.
    """
    name = type(module).__name__
    odd = {
        "biases": module.has_bias,
        "a norm behind its experts": module.has_post_expert_norm,
        "no gate": not module.has_gate,
        "transposed weights": module.is_transposed,
        "interleaved gate and up rows": not module.is_concatenated,
        "a gate of its own": type(module)._apply_gate is not _default_apply_gate,
    }
    found = next((what for what, is_so in odd.items() if is_so), None)
    if found is not None:
        raise UnsupportedModel(f"{name} has {found}, which is not supported")
    kind = type(module.act_fn).__name__
    if kind not in ACTIVATIONS:
        raise UnsupportedModel(f"{name} has the activation {kind}, which is not supported")
    return ACTIVATIONS[kind]


def emit_experts(
    module: torch.nn.Module,
    hidden_states: torch.Tensor,
    top_k_index: torch.Tensor,
    top_k_weights: torch.Tensor,
) -> torch.Tensor:
    """The function behind `INTERFACE_NAME`.

    Args:
        module: the experts.
        hidden_states: [T, K].
        top_k_index: [T, S].
        top_k_weights: [T, S].

    Returns:
        [T, K].

    Raises:
        UnsupportedModel: see `_require_plain`.
    """
    activation = _require_plain(module)
    made: torch.Tensor = torch.ops.ortloom_export.experts(
        hidden_states, top_k_index, top_k_weights, module.gate_up_proj, module.down_proj, activation
    )
    return made


def register_experts() -> None:
    """Make `emit_experts` known to transformers (process-global)."""
    ExpertsInterface.register(INTERFACE_NAME, emit_experts)
