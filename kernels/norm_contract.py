"""The op contract `ortloom::SkipRMSNorm`, version 1.

sum = x + skip            (sum = x where skip is absent)
y = sum / sqrt(mean(sum²) + epsilon) * gamma, by rows of D

in fp32: the squares are summed in 16 chains of fused multiply-adds, element i in chain i mod 16,
and the chains are folded in halves (8 + 8, 4 + 4, ...); then factor = 1 / sqrt(total / D +
epsilon) and y = (sum * factor) * gamma. A row of the outputs depends on its own rows of x and skip
alone (bitwise), and every tier with fused multiply-adds gives the same bits.

The meaning is that of `com.microsoft::SkipSimplifiedLayerNormalization`, or, without skip, of
`SimplifiedLayerNormalization` along the last axis.
"""

from dataclasses import dataclass

SKIP_RMS_NORM = "SkipRMSNorm"

NORM_INPUTS = (
    "x",  # [T, D] f32
    "skip",  # [T, D] f32, optional
    "gamma",  # [D] f32
)
NORM_OUTPUTS = (
    "y",  # [T, D] f32
    "sum",  # [T, D] f32, optional
)


@dataclass(frozen=True)
class NormAttributes:
    """Attributes of a node, with the contract's default."""

    epsilon: float = 1e-6
