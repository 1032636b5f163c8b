// Reading ahead: the next tile comes into the caches while the present one is computed with.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_AHEAD_H_
#define ORTLOOM_ATTENTION_AHEAD_H_

#include "attention_pools.h"

namespace {

// What is fetched into the caches while a tile is computed with: the tile that is read next. Blocks
// lie anywhere, so that the processor, which guesses within a page, cannot know where it is.
struct Ahead {
  const char* keys[kGroupsPerTile];
  const char* values[kGroupsPerTile];
  ptrdiff_t key_step;      // bytes from a column of keys to the next; 0: keys are not fetched so
  ptrdiff_t value_stride;  // bytes from a token to the next
  ptrdiff_t element;       // bytes
};

__attribute__((always_inline)) inline void fetch(const char* p) { __builtin_prefetch(p, 0, 3); }

// `cached` stands in for what is not there: fetching it again costs nothing.
inline Ahead nothing_ahead(const float* cached) {
  Ahead ahead = {};
  for (int g = 0; g < kGroupsPerTile; ++g) {
    ahead.keys[g] = ahead.values[g] = reinterpret_cast<const char*>(cached);
  }
  return ahead;
}

template <class P>
inline Ahead ahead_of(const Tile<P>& next, const float* cached) {
  Ahead ahead = nothing_ahead(cached);
  ahead.element = sizeof(typename P::Type);
  ahead.key_step = P::kHeadMajor ? kGroupKeys * ahead.element : 0;
  ahead.value_stride = next.values.stride * ahead.element;
  for (int g = 0; g < kGroupsPerTile; ++g) {
    if (!next.mapped[g]) continue;
    ahead.keys[g] = reinterpret_cast<const char*>(next.keys.group[g]);
    ahead.values[g] = reinterpret_cast<const char*>(next.values.group[g]);
    if constexpr (P::Element::kScaled) {
      fetch(reinterpret_cast<const char*>(next.scales.key[g]));
      fetch(reinterpret_cast<const char*>(next.scales.value[g]));
    }
  }
  return ahead;
}

// The rest of what comes next, behind the groups that were scored and around the keys that were
// mixed in.
inline void fetch_rest(const Ahead& ahead, int64_t size, int count, int low, int high) {
  for (int g = count; g < kGroupsPerTile; ++g) {
    for (int64_t byte = 0; byte < size * ahead.key_step; byte += 64) fetch(ahead.keys[g] + byte);
  }
  const auto fetch_values = [&](int begin, int end) {
    for (int j = begin; j < end; ++j) {
      const char* token = ahead.values[j / kGroupKeys] + j % kGroupKeys * ahead.value_stride;
      for (int64_t byte = 0; byte < size * ahead.element; byte += 64) fetch(token + byte);
    }
  };
  fetch_values(0, low);
  fetch_values(high, kTileKeys);
}

// Keys of the canonical layout come next token by token.
inline void fetch_tokens(const Ahead& ahead, int64_t size, int g) {
  for (int j = 0; j < kGroupKeys; ++j) {
    const char* token = ahead.keys[g] + j * ahead.value_stride;
    for (int64_t byte = 0; byte < size * ahead.element; byte += 64) fetch(token + byte);
  }
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_AHEAD_H_
