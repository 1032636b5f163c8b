"""The part of the manifest that describes a graph: its file, what goes in and out, its KV cache."""

from typing import Any, Literal

import msgspec

KVCacheDtype = Literal["float32", "float16", "bfloat16", "int8_per_token_head"]
"""What the pools of a graph hold. int8_per_token_head: int8 with one float32 scale for each token
and KV head, in pools of their own."""


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file of the bundle or of the source; `path` is relative with forward slashes."""

    path: str
    size: int
    sha256: str


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A graph input or output. `shape` mixes fixed sizes and symbols: T packed tokens, R requests,
    M blocks a request, N sampled rows, R1 = R + 1, num_blocks, block_size."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


class GraphIO(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The names the runtime binds; it never guesses one.

    Required: see the shapes beside each. The optional inputs are reserved for graphs that have
    them; a graph without one has None or an empty tuple there.
    """

    input_ids: str = "input_ids"  # [T] i64
    positions: str = "positions"  # [T] i64, or [3, T] with positions_rows = 3 (M-RoPE)
    cu_seqlens: str = "cu_seqlens"  # [R+1] i32
    past_seqlens: str = "past_seqlens"  # [R] i32, tokens in the cache before this step
    block_table: str = "block_table"  # [R, M] i32, -1 = unmapped
    slot_mapping: str = "slot_mapping"  # [T] i32, -1 = not written
    logits_indices: str = "logits_indices"  # [N] i64, rows of the packed tokens
    logits: str = "logits"  # [N, V] f32
    k_cache: tuple[str, ...] = ()  # one a layer: [num_blocks, block_size, kv_heads, head_dim]
    v_cache: tuple[str, ...] = ()
    k_cache_out: tuple[str, ...] = ()
    v_cache_out: tuple[str, ...] = ()
    # reserved optional graph inputs and outputs
    positions_rows: Literal[1, 3] = 1
    inputs_embeds: str | None = None  # [T, H] f32
    inputs_embeds_mask: str | None = None  # [T] bool, rows taken from inputs_embeds
    k_scale: tuple[str, ...] = ()  # one a layer of int8 pools: [num_blocks, block_size, kv_heads]
    v_scale: tuple[str, ...] = ()
    k_scale_out: tuple[str, ...] = ()
    v_scale_out: tuple[str, ...] = ()
    state_pools: tuple[str, ...] = ()  # [num_slots, ...] recurrent or convolution state
    state_pools_out: tuple[str, ...] = ()
    state_slots: str | None = None  # [R] i32
    lora_a_pools: tuple[str, ...] = ()  # [slots, rank, K]
    lora_b_pools: tuple[str, ...] = ()  # [slots, N, rank]
    adapter_ids: str | None = None  # [T] i32, -1 = base model
    draft_hidden_states: str | None = None  # [T, H] f32, input of a draft head
    hidden_states_out: str | None = None  # [T, H] f32, output for a draft head


class Graph(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One graph variant. `opset_imports` are (domain, version) pairs, sorted.

    A variant may come once for each type of KV cache: `kv_cache_dtype`, in the words of
    --kv-cache-dtype. `kv_layout` says how a block of its pools lies in memory (the op contract
    explains both).
    """

    variant: Literal["contract", "cpu", "plain", "cuda", "tensorrt"]
    file: FileEntry
    io: GraphIO
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    opset_imports: tuple[tuple[str, int], ...]
    ops: tuple[tuple[str, int], ...] = ()  # histogram "domain::op" -> count, sorted
    kv_cache_dtype: KVCacheDtype = "float32"
    kv_layout: Literal["NB,BS,H,D", "NB,H,BS/16,D,16|NB,H,BS,D"] = "NB,BS,H,D"


_FIRST_KV = {"kv_cache_dtype": "float32", "kv_layout": "NB,BS,H,D"}
_LATER_NAMES = ("k_scale_out", "v_scale_out")


def drop_later_defaults(graph: dict[str, Any]) -> None:
    """Leave out of a graph's tree the fields that came after the first manifests and say nothing.

    The artefact id hashes the tree: a manifest written before them keeps its id.
    """
    for name, value in _FIRST_KV.items():
        if graph[name] == value:
            del graph[name]
    for name in _LATER_NAMES:
        if not graph["io"][name]:
            del graph["io"][name]
