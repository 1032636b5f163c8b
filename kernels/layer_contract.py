"""The op contract `ortloom::DecoderLayer`, version 1: a whole pre-norm decoder layer as one node.

It computes what these seven nodes compute, bit by bit on the CPU (RMSNorm as SkipRMSNorm does):

    residual = x + skip                                     (residual = x where skip is absent)
    normed = RMSNorm(residual, attention_gamma)             by attention_norm_epsilon
    qkv = PackedLinear(normed, qkv_*)
    mixed = PagedAttention(qkv, pools ...)                  packed QKV
    projected = PackedLinear(mixed, o_*)
    sum = projected + residual
    normed = RMSNorm(sum, mlp_gamma)                        by mlp_norm_epsilon
    gated = PackedLinear(normed, gate_up_*, activation)
    y = PackedLinear(gated, down_*)

so that a decode step is one call a layer: the library's threads meet between the stages and never
leave. The residual stream of the next layer is sum + y, which that layer adds itself.

`DecoderLayer`, `DecoderLayerFloat16`, `DecoderLayerBFloat16` and `DecoderLayerInt8` differ in the
type of the pools as the attention ops do. Layers of one model that differ in which inputs they give
or in the form of a matrix get names of their own, `DecoderLayer_2` to `DecoderLayer_4`, since ONNX
Runtime tells bodies apart by name alone.
"""

from dataclasses import dataclass

from ortloom.kernels import contract
from ortloom.kernels.contract import INPUTS, POOLS

DECODER_LAYER = "DecoderLayer"

MAX_LAYER_FORMS = 4
"""Names a model may use: the op's own and those with a number."""

MATRICES = ("qkv", "o", "gate_up", "down")
"""Prefixes of the four linears; each has the inputs and attributes of PackedLinear behind it."""

MATRIX_INPUTS = ("weight", "scales", "mins", "bias")
MATRIX_ATTRIBUTES = ("format", "N", "K", "block_size")

LAYER_POOL_INPUTS = INPUTS[INPUTS.index("key_cache") : INPUTS.index("v_scale") + 1]
"""The attention's inputs behind query, key and value, as in PagedAttention."""


def _matrix(prefix: str) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in MATRIX_INPUTS)


LAYER_INPUTS = (
    "x",  # [T, K] f32
    "skip",  # [T, K] f32, optional
    "attention_gamma",  # [K] f32
    *_matrix("qkv"),  # N = (H + 2*KH)*D
    *LAYER_POOL_INPUTS,
    *_matrix("o"),  # N = K of the model
    "mlp_gamma",  # [K] f32
    *_matrix("gate_up"),  # N = 2F
    *_matrix("down"),
)
LAYER_OUTPUTS = (
    "y",  # [T, K] f32
    "sum",  # [T, K] f32
    "key_cache_out",
    "value_cache_out",
)
"""Int8 pools have two more, those of PagedAttentionInt8."""


def layer_name(attention: str, form: int) -> str:
    """The op of layers around attention op `attention`, for the model's form number from 0."""
    kind = DECODER_LAYER + attention.removeprefix(contract.PAGED_ATTENTION)
    return kind if form == 0 else f"{kind}_{form + 1}"


LAYER_OPS = {
    layer_name(op, form): op for op in contract.OP_POOLS for form in range(MAX_LAYER_FORMS)
}
"""Name of each layer op → the attention op inside."""


@dataclass(frozen=True)
class PoolSlots:
    """Where a node of an op has its pools: input places by the names of `contract.POOLS`, and the
    outputs that are pools, with their places, by the input they are written from."""

    inputs: dict[str, int]
    outputs: dict[str, int]


def pool_slots(op: str) -> PoolSlots | None:
    """For an op of our domain that attends, alone or as a layer; None for any other."""
    attention = LAYER_OPS.get(op, op)
    if attention not in contract.OP_POOLS:
        return None
    names, first = (LAYER_INPUTS, 2) if op in LAYER_OPS else (INPUTS, 1)
    written = [name.removesuffix("_out") for name in contract.outputs_of(attention)[1:]]
    return PoolSlots(
        {name: names.index(name) for name in POOLS},
        {name: first + index for index, name in enumerate(written)},
    )
