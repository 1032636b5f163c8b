"""The op contracts `ortloom::ExpertRouting` and `ortloom::PackedExperts`, version 1.

A mixture of experts is two nodes: one names the experts of each token and their weights, the other
runs them. PackedExperts knows nothing of how experts are chosen: a routing of another kind (sigmoid
scores, a bias for the choice, groups of experts) is another node with the same two outputs.

`ExpertRouting` chooses by logits [T, E]:
  ids: the `top_k` experts of the largest logits, in descending order; of equal logits the lower id
    comes first; one that is not a number counts as minus infinity.
  weights[t, j] = p[ids[t, j]], p = softmax(logits[t]) over all E experts, divided by the sum of the
    chosen ones if `normalize`. Computed in float64 and rounded once; sums go over ascending
    experts, or ascending slots j. A row with a logit that is no number has weights that are none.

`PackedExperts` runs, for each token t and slot j < S, expert e = ids[t, j]:
  h = act(x[t] G_e^T) * (x[t] U_e^T)         [I]
  d[t, j] = h D_e^T                          [K]
  y[t] = sum over j of weights[t, j] * d[t, j], from the first slot to the last; each product and
    each sum is rounded to fp32
The rows of G_e lie before those of U_e in one matrix [2I, K] ("gate_up"); D_e is [K, I] ("down").
Each product is that of `PackedLinear`, activations rounded to int8 in the quantised formats, for h
as well as for x; see `packed_contract` for act, formats and panels. I is a multiple of 16. The two
kinds of matrices may differ in format and block size; all experts of a kind are alike. A weight
input is the panels of expert 0, then of expert 1, ...: a leading axis of E before PackedLinear's.

Only the weights of experts that a token names are read. An expert may be named twice by a token. An
id outside 0 .. E-1 is refused before anything is computed. A row of y depends on its own rows of x,
ids and weights alone: never on T, on the other rows or on the number of threads (bitwise).
"""

from dataclasses import dataclass
from typing import Literal

from ortloom.kernels.packed_contract import Format, PackedAttributes

EXPERT_ROUTING = "ExpertRouting"
PACKED_EXPERTS = "PackedExperts"

ROUTING_INPUTS = ("logits",)  # [T, E] f32
ROUTING_OUTPUTS = (
    "ids",  # [T, top_k] i64
    "weights",  # [T, top_k] f32
)

EXPERTS_INPUTS = (
    "x",  # [T, K] f32
    "ids",  # [T, S] i64
    "weights",  # [T, S] f32
    "gate_up",  # panels [E, P, ...] of [2I, K] each
    "gate_up_scales",  # quantised formats only
    "gate_up_mins",  # quantised formats only, optional
    "down",  # panels [E, P, ...] of [K, I] each
    "down_scales",  # quantised formats only
    "down_mins",  # quantised formats only, optional
)
EXPERTS_OUTPUTS = ("y",)  # [T, K] f32

ExpertActivation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True)
class RoutingAttributes:
    """Attributes of an ExpertRouting node."""

    top_k: int
    normalize: int = 0


@dataclass(frozen=True)
class ExpertsAttributes:
    """Attributes of a PackedExperts node. Block sizes are 0 for floating formats."""

    experts: int
    K: int
    I: int  # noqa: E741
    gate_up_format: Format
    down_format: Format
    gate_up_block_size: int = 0
    down_block_size: int = 0
    activation: ExpertActivation = "silu"

    def gate_up(self) -> PackedAttributes:
        """One expert's gate and up projection, as the packed linear it is."""
        return PackedAttributes(
            self.gate_up_format, 2 * self.I, self.K, self.gate_up_block_size, self.activation
        )

    def down(self) -> PackedAttributes:
        """One expert's down projection, as the packed linear it is."""
        return PackedAttributes(self.down_format, self.K, self.I, self.down_block_size)
