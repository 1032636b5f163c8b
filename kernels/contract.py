"""The op contract `ortloom::PagedAttention`, version 1: names, order, meaning.

Input order, names and attributes mirror `com.microsoft::PagedAttention` of ONNX Runtime 1.32, so
that a CUDA variant is the same node with another domain. Differences: all three outputs are always
present; both pools are required. T tokens, R requests, M blocks a request, H query heads, KH
kv heads, D head size.

Query, key and value come in one of two forms with the same results, bit by bit. Separate: `query`
[T, H*D], `key` and `value` [T, KH*D]. Packed: `query` is [T, (H + 2*KH)*D], each row the query
heads, then the key heads, then the value heads; `key` and `value` are absent. One without the other
is refused.

Semantics of one node, for request r with tokens cu_seqlens[r] .. cu_seqlens[r+1]:
1. token t of request r has absolute position p = past_seqlens[r] + (t - cu_seqlens[r]).
2. If q_norm_weight/k_norm_weight are given: RMSNorm over D of every query and key head.
3. If do_rotary: rotate query and key by row p of cos_cache/sin_cache [P, rotary_dim / 2]
   (half-split pairs (i, i + rotary_dim/2); interleaved pairs (2i, 2i+1) if rotary_interleaved).
4. Write key and value of token t at flat slot slot_mapping[t] = block * block_size + offset of the
   pools [num_blocks, block_size, KH, D]; -1 writes nothing.
5. Query t attends keys j in 0..p (0 .. end of the request's tokens if is_causal = 0), reading key j
   from block block_table[r, j // block_size]; a key in a block of -1 is skipped. With
   local_window_size W >= 1 only j with p - j < W are seen: W counts the token itself, as
   `sliding_window` of transformers does. -1 is no window; other values are refused. ONNX
   Runtime's GroupQueryAttention (CPU kernel, tested) counts the same way from 1.24 on; up to
   1.23 it saw W tokens to the left besides. A window bounds on the left only.
6. score = scale * q.k (scale 0 = 1/sqrt(D)); if softcap > 0: softcap * tanh(score / softcap);
   softmax over the seen keys, with exp(head_sink[h]) added to the denominator if given.
   A query that sees no key gives zeros.
Channels that rotate are rotary_offset .. rotary_offset + rotary_dim. q_norm_weight and
k_norm_weight come together, and so do cos_cache and sin_cache. Slots of one call are distinct
(-1 aside). The pool outputs share the memory of the pool inputs: one OrtValue is bound as both.
Every shape, id, slot and length is checked before anything is written.
Block 0 is the null block: nobody's data; a slot or table entry of -1 maps to it in the body.

Pools may hold other types than float32. Each type is an op of its own (`POOL_OPS`), since ONNX
Runtime tells function bodies apart by name alone and a custom op has fixed types; inputs,
attributes and semantics are the same but for what follows.
- float16, bfloat16: key (after norm and rotation) and value are rounded to nearest, ties to even,
  when they are written; what is read is widened to float32.
- int8 (vLLM's int8_per_token_head): for each token and KV head of key (after norm and rotation) and
  value, with x in float32: amax = max |x|, scale = amax / 127, inverse = 127 / amax (0 if amax is
  below 2^-100), code = x * inverse rounded half to even and clamped to -127 .. 127. The scale goes
  to the scale pool at the token's slot. A key gives score = scale * sum(q * code) before everything
  that follows; a value's weight is multiplied by its scale. `k_scale` and `v_scale` are required,
  are pools like the others, and come back as outputs 3 and 4 in the same memory.

`kv_layout` says how a block's elements lie in memory; the declared shapes do not change.
- "NB,BS,H,D": as declared. Float32 pools only. Contract and plain graphs.
- "NB,H,BS/16,D,16|NB,H,BS,D" (head-major), all types: a block of the key pool is
  [KH, block_size / 16, D, 16], 16 tokens innermost; of the value pool [KH, block_size, D]; of a
  scale pool [KH, block_size]. cpu graphs.
"""

from dataclasses import dataclass

DOMAIN = "ortloom"
DOMAIN_VERSION = 1
PAGED_ATTENTION = "PagedAttention"

POOL_OPS = {
    "float32": PAGED_ATTENTION,
    "float16": "PagedAttentionFloat16",
    "bfloat16": "PagedAttentionBFloat16",
    "int8": "PagedAttentionInt8",
}
"""Element type of the key and value pools → name of the op."""

OP_POOLS = {op: dtype for dtype, op in POOL_OPS.items()}
"""Name of the op → element type of its key and value pools."""

CANONICAL_LAYOUT = "NB,BS,H,D"
HEAD_MAJOR_LAYOUT = "NB,H,BS/16,D,16|NB,H,BS,D"
KEY_LANES = 16
"""Tokens that lie innermost in a key pool of the head-major layout."""

TOLERANCES = {"float32": 5e-6, "float16": 2e-3, "bfloat16": 2e-2, "int8": 2e-2}
"""Largest difference from the oracle, relative to the largest output. Two implementations may round
a key or value of a typed pool to neighbouring steps where their float32 values differ in the last
digit; an int8 step is 1/127 of the head's largest value."""

INPUTS = (
    "query",  # [T, H*D] f32, or packed QKV [T, (H + 2*KH)*D] f32 without key and value
    "key",  # [T, KH*D] f32, optional
    "value",  # [T, KH*D] f32, optional
    "key_cache",  # [num_blocks, block_size, KH, D] of the op's pool type
    "value_cache",  # [num_blocks, block_size, KH, D] of the op's pool type
    "cumulative_sequence_length",  # [R+1] i32
    "past_seqlens",  # [R] i32
    "block_table",  # [R, M] i32
    "cos_cache",  # [P, rotary_dim/2] f32, optional
    "sin_cache",  # [P, rotary_dim/2] f32, optional
    "slot_mapping",  # [T] i32
    "head_sink",  # [H] f32, optional
    "q_norm_weight",  # [D] f32, optional
    "k_norm_weight",  # [D] f32, optional
    "k_scale",  # [num_blocks, block_size, KH] f32: int8 pools only, which need it
    "v_scale",  # [num_blocks, block_size, KH] f32: int8 pools only, which need it
    "attention_metadata",  # reserved, optional
)
OPTIONAL_INPUTS = frozenset(
    {"key", "value", "cos_cache", "sin_cache", "head_sink", "q_norm_weight", "k_norm_weight"}
    | {"k_scale", "v_scale", "attention_metadata"}
)
"""Inputs a node may leave out; an op of int8 pools still needs both scales."""

OUTPUTS = ("output", "key_cache_out", "value_cache_out")
SCALE_OUTPUTS = ("k_scale_out", "v_scale_out")
"""Outputs 3 and 4 of the op of int8 pools."""

POOLS = ("key_cache", "value_cache", "k_scale", "v_scale")
"""Inputs that are pools, in the order of their outputs."""


def outputs_of(op: str) -> tuple[str, ...]:
    """Outputs of an op of `POOL_OPS`."""
    return OUTPUTS + SCALE_OUTPUTS if OP_POOLS[op] == "int8" else OUTPUTS


def layouts_of(op: str) -> tuple[str, ...]:
    """Layouts an op of `POOL_OPS` takes."""
    canonical = (CANONICAL_LAYOUT,) if OP_POOLS[op] == "float32" else ()
    return (*canonical, HEAD_MAJOR_LAYOUT)


MIN_HEAD_SIZE, MAX_HEAD_SIZE, HEAD_SIZE_MULTIPLE = 64, 256, 16
MIN_BLOCK_SIZE, MAX_BLOCK_SIZE, BLOCK_SIZE_MULTIPLE = 16, 256, 16


@dataclass(frozen=True)
class PagedAttentionAttributes:
    """Attributes of one node, with the contract's defaults."""

    num_heads: int
    kv_num_heads: int
    scale: float = 0.0
    softcap: float = 0.0
    local_window_size: int = -1
    do_rotary: int = 0
    rotary_interleaved: int = 0
    rotary_offset: int = 0
    is_causal: int = 1
    qk_norm_epsilon: float = 1e-6
    kv_layout: str = CANONICAL_LAYOUT
