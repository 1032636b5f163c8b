"""How far two sets of logits are apart."""

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]

FP32_TOLERANCE = 2e-5
"""Largest difference of fp32 logits, relative to the largest reference logit."""

ROUNDED_LIMITS = {4: (0.8, 1.0), 8: (0.99, 0.05), 16: (0.999, 0.01)}
"""Fewest bits of a matrix rounded at export → (least mean cosine, largest mean KL divergence in
nats) against fp32."""

KEPT_LIMITS = (0.99, 0.05)
"""The same where the reference has the very values that the bundle stores and only the input of
linear layers is rounded to 8 bits."""

KV_CACHE_COSINE = 0.9
"""Least mean cosine of a smaller KV cache against float32. The figures are for the reader: below
this one the graph is wrong, not rounded."""


@dataclass(frozen=True)
class Figures:
    """Differences of logits [rows, V] against a reference.

    `max_abs` in logits; `relative` = max_abs / max |reference|; `kl` = mean over rows of
    KL(reference || got) in nats; `top1` = share of rows with the same argmax; `cosine` = mean.
    """

    rows: int
    max_abs: float
    scale: float
    relative: float
    kl: float
    top1: float
    cosine: float

    def rounded(self) -> dict[str, float]:
        """For the report, six significant digits."""
        return {k: float(f"{v:.6g}") for k, v in asdict(self).items()}


def _log_softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    shifted = x - x.max(axis=-1, keepdims=True)
    result: npt.NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def compare(got: Logits, reference: Logits) -> Figures:
    """Figures of two arrays of one shape; a NaN anywhere makes the differences infinite."""
    if not (np.isfinite(got).all() and np.isfinite(reference).all()):
        infinite = float("inf")
        return Figures(len(got), infinite, 0.0, infinite, infinite, 0.0, 0.0)
    a, b = got.astype(np.float64), reference.astype(np.float64)
    max_abs, scale = float(np.abs(a - b).max()), float(np.abs(b).max())
    logp, logq = _log_softmax(b), _log_softmax(a)
    kl = float((np.exp(logp) * (logp - logq)).sum(axis=-1).mean())
    norms = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    cosine = float(((a * b).sum(axis=-1) / np.maximum(norms, 1e-30)).mean())
    top1 = float((a.argmax(axis=-1) == b.argmax(axis=-1)).mean())
    return Figures(len(got), max_abs, scale, max_abs / max(scale, 1e-30), kl, top1, cosine)
