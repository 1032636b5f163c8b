"""The op contracts `ortloom::PackedLinear` and `ortloom::PackedEmbedding`, version 1.

A weight matrix W [N, K] is stored in panels of 16 rows, P = ceil(N / 16) of them; rows past N are
zeros. The bytes are the same for every instruction set and are read straight from the memory map.

Floating formats ("f32", "f16", "bf16"): `weight` [P, K, 16]; element [p, k, r] is W[16p + r, k].

Quantised formats: codes are unsigned, in blocks of `block_size` neighbours along K.
  "u8": `weight` uint8 [P, K/4, 16, 4]; byte [p, i, r, j] is the code of W[16p + r, 4i + j].
  "u4": `weight` uint8 [P, K/8, 16, 4]; the low nibble of byte [p, i, r, j] is the code of
        W[16p + r, 8i + j], the high nibble that of W[16p + r, 8i + 4 + j].
  `scales` f16 or f32 [P, K/block_size, 16]; `mins` of the same type and shape, or absent.
  value = scale * code + min          with mins (the product rounded to fp32, then the sum)
  value = scale * (code - zero)       without; zero = 128 for u8, 8 for u4
So every block format with a scale, or a scale and a minimum or zero point (-scale * zero as fp32),
fits without a change of its values: GGUF Q4_0, Q4_1, Q8_0, Q4_K, Q6_K (u8, block 16), GPTQ, AWQ.

`PackedLinear` computes y = x W^T (+ bias) for x [T, K].

Floating formats: weights are widened to fp32; y[t, n] is one chain of fused multiply-adds over
k = 0 .. K-1, starting from 0; the bias is added at the end.

Quantised formats: x is rounded to int8 per row and group of 32 neighbours first:
  amax = max |x|, a_scale = amax / 127, a = rint_half_even(x * (127 / amax)), all zero if amax = 0
then, for each span of min(32, block_size) along K, in ascending order:
  dot = sum of code * a over the span, total = sum of a over the span (exact in int32)
  part = scale * float(dot - zero * total)                     without mins
  part = fma(scale, float(dot), min * float(total))            with mins
  y = fma(a_scale, part, y)
Integer sums are exact, so tiers differ in nothing but the rounding of unfused multiply-adds; with
one exception: "bf16" on the tier avx512-bf16 rounds x to bfloat16 and takes two neighbours of k in
a step, which leaves results within 2e-2 of the largest one. An x
that is not finite makes the row's results not finite, and touches no other row.

With `activation` set, W is the rows of a gate followed by the rows of an up projection, N = 2F, F a
multiple of 16, and the output is [T, F]: act(gate) * up, act one of "silu", "gelu" (erf),
"gelu_tanh".

A row of the output depends on its own row of x alone: never on T, on the other rows or on the
number of threads (bitwise).

`PackedEmbedding` gathers rows: ids [T] -> values [T, K] of W's rows, as the formulas above say
(f16 and bf16 widened). Ids outside 0 .. N-1 are refused.
"""

from dataclasses import dataclass
from typing import Literal

PACKED_LINEAR = "PackedLinear"
PACKED_EMBEDDING = "PackedEmbedding"

LINEAR_INPUTS = (
    "x",  # [T, K] f32
    "weight",  # panels, see above
    "scales",  # quantised formats only
    "mins",  # quantised formats only, optional
    "bias",  # [N] f32, optional
)
LINEAR_OUTPUTS = ("y",)  # [T, N] f32, or [T, N/2] with an activation

EMBEDDING_INPUTS = (
    "ids",  # [T] i64
    "weight",
    "scales",  # quantised formats only
    "mins",  # quantised formats only, optional
)
EMBEDDING_OUTPUTS = ("rows",)  # [T, K] f32

PANEL = 16
"""Rows of a panel."""

ACTIVATION_GROUP = 32
"""Neighbours of an activation row that share a scale."""

BLOCK_SIZES = (16, 32, 64, 128, 256)
ZERO = {"u8": 128, "u4": 8}

Format = Literal["f32", "f16", "bf16", "u8", "u4"]
Activation = Literal["", "silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class PackedAttributes:
    """Attributes of a node. `block_size` is 0 for floating formats; K is a multiple of it and of
    32 for quantised ones. PackedEmbedding has no activation."""

    format: Format
    N: int
    K: int
    block_size: int = 0
    activation: Activation = ""
