"""The matrices of experts in GGUF files, each as a tensor of its own.

Files hold the experts of a layer stacked (`blk.<i>.ffn_gate_exps.weight`, outermost axis first
[E, N, K], and likewise `ffn_up_exps` and `ffn_down_exps`) or, older ones, every matrix apart
(`blk.<i>.ffn_gate.<e>.weight`). A stack is whole blocks from one matrix to the next, so an expert's
matrix is a range of its bytes. The names given are those that safetensors checkpoints use, of which
`expert_tensors` makes transformers' parameters.
"""

import re

from ortloom.errors import SourceInvalid
from ortloom.exporter.sources.gguf_container import StoredGguf

_STACK = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)_exps\.weight")
_SINGLE = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight")


def layer_with_experts(tensor: str) -> int | None:
    """The layer of a tensor that holds experts, None for another tensor."""
    match = _STACK.fullmatch(tensor) or _SINGLE.fullmatch(tensor)
    return None if match is None else int(match[1])


def expert_matrices(tensor: str, stored: StoredGguf) -> dict[str, StoredGguf]:
    """Name → place of each expert's matrix [N, K] in a tensor; empty for one without experts.

    Raises:
        SourceInvalid: a tensor of experts has not the axes it must have.
    """
    single, stack = _SINGLE.fullmatch(tensor), _STACK.fullmatch(tensor)
    if single is not None:
        return {_name(single[1], single[3], single[2]): stored}
    if stack is None:
        return {}
    if len(stored.shape) != 3:
        raise SourceInvalid(
            f"tensor '{tensor}' has shape {list(stored.shape)}, not [experts, rows, columns]"
        )
    experts, *matrix = stored.shape
    size = stored.length // experts
    return {
        _name(stack[1], str(expert), stack[2]): StoredGguf(
            tuple(matrix), stored.kind, stored.start + expert * size, size
        )
        for expert in range(experts)
    }


def _name(layer: str, expert: str, part: str) -> str:
    return f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
