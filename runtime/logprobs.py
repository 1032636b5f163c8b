"""Log-probability entries of one position: the own token, then the top ones.

Values are taken from a row [V] f32 in one of the four modes (raw or processed, logprobs or logits);
a token that is cut or masked has no finite value and is reported as CUT. The rank of a token is the
number of tokens whose value is at least its own, so 1 is best and ties share the larger number.
"""

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ortloom.runtime.messages import TokenLogprobs
from ortloom.runtime.token_draw import leading, masses

LogprobsMode = Literal["raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"]

CUT = -9999.0
"""Stands for -inf and NaN, which JSON cannot hold."""


def log_normaliser(row: NDArray[np.float32]) -> float:
    """log(sum(exp(row))) of one row [V] f32, by the masses of `token_draw`."""
    top = row.max()
    return float(top) + math.log(float(masses(row, top).sum()))


def describe(
    row: NDArray[np.float32],
    offset: float,
    own: int,
    num_top: int,
    extra: Sequence[int] = (),
    kept: NDArray[np.int64] | None = None,
) -> TokenLogprobs:
    """Entries of one position.

    Args:
        row: [V] f32 values before the cut, no NaN.
        offset: subtracted from each value: the log normaliser, or 0.0 for logits.
        own: the position's own token; always the first entry.
        num_top: how many top tokens follow (the own token may be among them); -1 = all.
        extra: ids listed after those, in this order.
        kept: the surviving ids in descending order if tokens were cut, else None.
    """
    vocab = len(row)
    wanted = vocab if num_top < 0 else min(num_top, vocab)
    top = leading(row, wanted)[:wanted] if wanted else np.empty(0, np.int64)
    if len(top) < wanted:  # tokens at -inf fill up, lowest ids first
        top = np.concatenate([top, np.flatnonzero(row == -np.inf)[: wanted - len(top)]])
    ids = np.concatenate([[own], top, np.asarray(extra, np.int64)]).astype(np.int64)
    values = row[ids]
    logprobs = values.astype(np.float64) - offset
    ranks = _ranks(row, ids, values, len(top), kept)
    if kept is not None:
        logprobs[~np.isin(ids, kept)] = CUT
    logprobs[~np.isfinite(logprobs)] = CUT
    return TokenLogprobs(ids.tolist(), logprobs.tolist(), ranks)


def _ranks(
    row: NDArray[np.float32],
    ids: NDArray[np.int64],
    values: NDArray[np.float32],
    num_top: int,
    kept: NDArray[np.int64] | None,
) -> list[int]:
    """Ranks of `ids` = own, `num_top` in descending order, others.

    The top ones need one count only, of the last: a better one's ties all lie before it.
    """
    vocab = len(row)
    cut = set() if kept is None else set(np.setdiff1d(ids, kept).tolist())
    limit = vocab if kept is None else len(kept)
    top = values[1 : 1 + num_top]
    last = int(np.count_nonzero(row >= top[-1])) if num_top else 0
    within = np.searchsorted(-top, -top, side="right")
    ranks: list[int] = []
    for index, token in enumerate(ids.tolist()):
        if token in cut:
            ranks.append(vocab)
        elif 1 <= index <= num_top:
            count = int(within[index - 1])
            ranks.append(min(last if count == num_top else count, limit))
        else:
            ranks.append(min(int(np.count_nonzero(row >= values[index])), limit))
    return ranks
