// How the pools are read: element types, layouts, and where the keys and values of a tile lie.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_POOLS_H_
#define ORTLOOM_ATTENTION_POOLS_H_

#include "attention.h"
#include "attention_math.h"

namespace {

using ortloom::AttentionStep;
using ortloom::kGroupKeys;
using ortloom::kTileKeys;
using ortloom::PoolType;
using ortloom::QueryTile;

constexpr int kGroupsPerTile = kTileKeys / kGroupKeys;
constexpr int kTileVectors = kTileKeys / Vec::kLanes;

// An element type: exact widening on load, rounding to nearest even on store. A scaled one stands
// for element * scale with one scale a token and KV head.
struct Float32Element {
  using Type = float;
  static constexpr bool kScaled = false;
  static Vec widen(const float* p) { return load(p); }
  static void round(float* p, Vec a) { store(p, a); }
};
struct Float16Element {
  using Type = uint16_t;
  static constexpr bool kScaled = false;
  static Vec widen(const uint16_t* p) { return load_f16(p); }
  static void round(uint16_t* p, Vec a) { store_f16(p, a); }
};
struct BFloat16Element {
  using Type = uint16_t;
  static constexpr bool kScaled = false;
  static Vec widen(const uint16_t* p) { return load_bf16(p); }
  static void round(uint16_t* p, Vec a) { store_bf16(p, a); }
};
struct Int8Element {
  using Type = int8_t;
  static constexpr bool kScaled = true;
  static Vec widen(const int8_t* p) { return load_i8(p); }
  static void round(int8_t* p, Vec a) { store_i8(p, a); }
};

// Elements in a layout. Canonical: a block is [block_size, KH, D]. Head-major: the keys of a block
// are [KH, block_size / 16, D, 16], so that a vector of 16 keys is one load, and its values are
// [KH, block_size, D].
template <class ElementKind, bool HeadMajor>
struct Pool {
  using Element = ElementKind;
  using Type = typename Element::Type;
  static constexpr bool kHeadMajor = HeadMajor;
};

template <class Call>
inline void with_pool(const AttentionStep& step, Call call) {
  switch (step.pool) {
    case PoolType::kFloat16: return call(Pool<Float16Element, true>());
    case PoolType::kBFloat16: return call(Pool<BFloat16Element, true>());
    case PoolType::kInt8: return call(Pool<Int8Element, true>());
    case PoolType::kFloat32: break;
  }
  if (step.head_major) return call(Pool<Float32Element, true>());
  return call(Pool<Float32Element, false>());
}

// First element of a KV head's group of 16 tokens (keys), or of one token (values and canonical
// keys); `token` counts from the block's start.
template <class P>
inline int64_t key_offset(const AttentionStep& step, int64_t block, int64_t token, int64_t head) {
  if constexpr (P::kHeadMajor) {
    const int64_t group = token / kGroupKeys * kGroupKeys;
    return ((block * step.kv_heads + head) * step.block_size + group) * step.head_size +
           token % kGroupKeys;
  }
  return ((block * step.block_size + token) * step.kv_heads + head) * step.head_size;
}
template <class P>
inline int64_t value_offset(const AttentionStep& step, int64_t block, int64_t token,
                            int64_t head) {
  if constexpr (P::kHeadMajor) {
    return ((block * step.kv_heads + head) * step.block_size + token) * step.head_size;
  }
  return ((block * step.block_size + token) * step.kv_heads + head) * step.head_size;
}
inline int64_t scale_offset(const AttentionStep& step, int64_t block, int64_t token,
                            int64_t head) {
  return (block * step.kv_heads + head) * step.block_size + token;
}

// What a tile reads: one pointer a group of 16 keys, null where the group is not in the cache.
// `stride` is that of a token, in elements; head-major keys have none.
template <class Type>
struct TileRows {
  const Type* group[kGroupsPerTile];
  ptrdiff_t stride;
};
struct TileScales {
  const float* key[kGroupsPerTile];  // 16 scales each; null where the group is not in the cache
  const float* value[kGroupsPerTile];
};

// The groups of the tile at `base` of which keys [low, high) are seen.
template <class P>
struct Tile {
  TileRows<typename P::Type> keys, values;
  TileScales scales;
  bool mapped[kGroupsPerTile];
  bool any = false;

  Tile(const AttentionStep& step, const QueryTile& tile, int64_t base, int64_t low,
       int64_t high) {
    using Type = typename P::Type;
    const int32_t* table = step.table + tile.request * step.table_width;
    keys.stride = values.stride =
        static_cast<ptrdiff_t>(P::kHeadMajor ? step.head_size : step.kv_heads * step.head_size);
    int64_t index = base / step.block_size, token = base % step.block_size;
    for (int g = 0; g < kGroupsPerTile; ++g, token += kGroupKeys) {
      const int64_t start = base + g * kGroupKeys;
      if (token == step.block_size) {
        token = 0;
        ++index;
      }
      keys.group[g] = values.group[g] = nullptr;
      scales.key[g] = scales.value[g] = nullptr;
      mapped[g] = false;
      if (start + kGroupKeys <= low || start >= high) continue;
      const int64_t block = table[index], head = tile.kv_head;
      if (block < 0) continue;
      mapped[g] = any = true;
      keys.group[g] =
          static_cast<const Type*>(step.key_cache) + key_offset<P>(step, block, token, head);
      values.group[g] =
          static_cast<const Type*>(step.value_cache) + value_offset<P>(step, block, token, head);
      if constexpr (P::Element::kScaled) {
        scales.key[g] = step.key_scale + scale_offset(step, block, token, head);
        scales.value[g] = step.value_scale + scale_offset(step, block, token, head);
      }
    }
  }
};

// `count` elements (a multiple of 16) as floats.
template <class Element>
inline void widen_all(const typename Element::Type* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; i += Vec::kLanes) store(out + i, Element::widen(in + i));
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_POOLS_H_
