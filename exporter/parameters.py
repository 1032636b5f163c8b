"""Checkpoint tensors against the parameters a traced model has; ties and contradictions."""

from typing import Any

import numpy as np

from ortloom.errors import SourceInvalid
from ortloom.exporter.architectures import tied
from ortloom.exporter.sources.checkpoint import Checkpoint
from ortloom.exporter.weights import row_chunks

EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"

DERIVED_SUFFIXES = ("rotary_emb.inv_freq", ".masked_bias", ".attn.bias")
"""Tensors that older checkpoints store although the model computes them."""


def _equal(checkpoint: Checkpoint, first: str, second: str) -> bool:
    shapes = checkpoint.tensors[first].shape, checkpoint.tensors[second].shape
    if shapes[0] != shapes[1]:
        return False
    return all(
        np.array_equal(checkpoint.rows(first, a, b), checkpoint.rows(second, a, b))
        for a, b in row_chunks(shapes[0])
    )


def settle_ties(checkpoint: Checkpoint, config: dict[str, Any]) -> dict[str, Any]:
    """The config with `tie_word_embeddings` as the stored tensors really are.

    A checkpoint that says "tied" but stores another output matrix has two matrices: that is what
    was trained, so both are kept, and the contradiction is reported.
    """
    settled = dict(config)
    if not tied(config) or HEAD not in checkpoint.tensors or EMBEDDING not in checkpoint.tensors:
        return settled
    if not _equal(checkpoint, EMBEDDING, HEAD):
        settled["tie_word_embeddings"] = False
        checkpoint.warnings.append(
            f"config.json ties the output matrix to the embedding, but the checkpoint has another "
            f"{HEAD}: both are kept"
        )
    return settled


def require_parameters(
    checkpoint: Checkpoint, shapes: dict[str, tuple[int, ...]], ties: dict[str, str]
) -> None:
    """Check that every parameter is there with its shape; unknown tensors are reported.

    Raises:
        SourceInvalid: a tensor is missing or has another shape.
    """
    missing = sorted(set(shapes) - set(checkpoint.tensors))
    if missing:
        hint = ""
        if missing == [HEAD]:
            hint = " (config.json says that it is not tied to the embedding)"
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SourceInvalid(f"tensor '{missing[0]}'{more} is missing from the checkpoint{hint}")
    for name, shape in shapes.items():
        have = checkpoint.tensors[name].shape
        if have != shape:
            raise SourceInvalid(
                f"tensor '{name}' has shape {list(have)}, config.json asks for {list(shape)}"
            )
    known = set(shapes) | set(ties)
    extra = [n for n in sorted(set(checkpoint.tensors) - known)
             if not n.endswith(DERIVED_SUFFIXES)]  # fmt: skip
    if extra:
        more = f" and {len(extra) - 1} more" if len(extra) > 1 else ""
        checkpoint.warnings.append(f"tensor '{extra[0]}'{more} is not part of the model; left out")
