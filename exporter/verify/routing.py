"""Which experts a graph chooses, and whether these are the ones that a model would choose.

Where two router logits of a token are almost equal, a difference of the last digits decides which
expert runs, and then the outputs differ by a whole expert. That says nothing about the graph. So a
graph's choices are read from it and replayed in the reference, which judges them by its own
logits: a chosen expert may lie below the ones the reference would choose by no more than a small
share of the logits' range (`Verdict.gap`). With the same experts the outputs can be compared as
those of any other model.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from ortloom.errors import ParityFailed
from ortloom.exporter.stamp import layer_of
from ortloom.kernels.experts_contract import EXPERT_ROUTING

Ids = npt.NDArray[np.int64]

Choices = dict[int, list[Ids]]
"""Layer → ids [length, top_k] of each sequence."""


@dataclass(frozen=True)
class Allowed:
    """Largest `Verdict.gap` and `Verdict.moved` of a graph."""

    gap: float
    moved: float


EXACT = Allowed(gap=1e-3, moved=0.02)
"""Where a graph computes with fp32 activations: what its last digits are worth."""

ROUNDED = Allowed(gap=0.1, moved=0.2)
"""Where the inputs of its linear layers are rounded to 8 bits. Hidden states of the cosine 0.99
that such a graph is held to are off by 0.14 of their length, so a difference of two router logits
by 0.2 of their standard deviation, of which the logits' range is 3 or more. Tiny models with random
weights, which have more near ties than trained ones, were measured at gaps of 0.022 and 5.4 %
moved; another routing has gaps near 1."""


def expose_routing(data: bytes) -> tuple[bytes, dict[int, str]]:
    """A graph whose routing nodes' ids are outputs as well, and their names by layer.

    Raises:
        ParityFailed: it does not show which layer a routing node belongs to.
    """
    model = onnx.load_from_string(data)
    names: dict[int, str] = {}
    for node in model.graph.node:
        if node.op_type != EXPERT_ROUTING:
            continue
        ids = node.output[0]
        readers = [other for other in model.graph.node if ids in other.input]
        layers = {layer_of(name) for other in readers for name in other.input} - {None}
        if len(layers) != 1:
            raise ParityFailed("the graph does not show which layer a routing node belongs to")
        names[layers.pop() or 0] = ids
        model.graph.output.append(
            onnx.helper.make_tensor_value_info(ids, onnx.TensorProto.INT64, ["tokens", "experts"])
        )
    if not names:
        return data, {}
    return bytes(model.SerializeToString(deterministic=True)), names


@dataclass(frozen=True)
class Verdict:
    """How a graph's choices look from the reference's router logits.

    Attributes:
        gap: the largest distance of a chosen expert's logit below the least one that the
            reference chooses, as a share of the mean range of a token's logits in that layer:
            what reaches a router is normed, so noise is alike in all tokens, also in those to
            which all experts are almost equal.
        moved: share of (token, layer) pairs whose set of experts is another one.
    """

    gap: float
    moved: float

    def rounded(self) -> dict[str, float]:
        """For the report, six significant digits."""
        return {"largest_gap": float(f"{self.gap:.6g}"), "moved": float(f"{self.moved:.6g}")}


def verdict(logits: Mapping[int, Sequence[Any]], choices: Choices) -> Verdict:
    """Judge choices by router logits [length, E] of each layer and sequence.

    A token that names an expert twice, or one that does not exist, has an infinite gap.
    """
    gap, moved, pairs = 0.0, 0, 0
    for layer, sequences in choices.items():
        ranges = np.concatenate([np.ptp(np.asarray(one), axis=1) for one in logits[layer]])
        reach = max(float(ranges.mean(dtype=np.float64)), 1e-30)
        for ids, scores in zip(sequences, logits[layer], strict=True):
            found, count = np.asarray(scores, dtype=np.float64), ids.shape[1]
            ordered = np.sort(ids, axis=1)
            if ids.min() < 0 or ids.max() >= found.shape[1] or (np.diff(ordered) == 0).any():
                return Verdict(float("inf"), 1.0)
            least = np.sort(found, axis=1)[:, -count]
            chosen = np.take_along_axis(found, ids, axis=1)
            gaps = (least - chosen.min(axis=1)) / reach
            gap, pairs = max(gap, float(gaps.max())), pairs + len(ids)
            moved += int(np.count_nonzero(gaps > 0))
    return Verdict(gap, moved / max(pairs, 1))


def require_routing(found: Verdict, rounded: bool, what: str) -> None:
    """Check that choices are those of the reference but for near ties.

    Args:
        found: from the reference that computes with the graph's own weights.
        rounded: the graph rounds the inputs of its linear layers to 8 bits.
        what: named in the error.

    Raises:
        ParityFailed: they are not.
    """
    allowed = ROUNDED if rounded else EXACT
    if not found.gap <= allowed.gap:
        raise ParityFailed(
            f"{what}: a token goes to an expert whose router logit lies {found.gap:.3g} of the "
            f"logits' range below the ones to choose (allowed {allowed.gap:g})"
        )
    if not found.moved <= allowed.moved:
        raise ParityFailed(
            f"{what}: {found.moved:.1%} of the tokens' choices are other experts than the "
            f"reference's (allowed {allowed.moved:.0%})"
        )
