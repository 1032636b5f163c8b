"""NumPy oracle of `ortloom::SkipRMSNorm` (`norm_contract`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ortloom.kernels.norm_contract import NormAttributes
from ortloom.kernels.reference import rms_norm

Array = np.ndarray[Any, Any]


def skip_rms_norm(attributes: NormAttributes, inputs: Mapping[str, Array]) -> tuple[Array, Array]:
    """Run one node: float64, but for the sum, which is the op's own fp32 one.

    Args:
        attributes: of the node.
        inputs: tensors by the names of `NORM_INPUTS`.

    Returns:
        y and sum, fp32 [T, D].
    """
    total = np.asarray(inputs["x"], dtype=np.float32)
    if "skip" in inputs:
        total = total + np.asarray(inputs["skip"], dtype=np.float32)
    gamma = np.asarray(inputs["gamma"], dtype=np.float64)
    normed = rms_norm(total.astype(np.float64), gamma, attributes.epsilon)
    return normed.astype(np.float32), total
