// One tile of 64 keys against the query rows of a task.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_TILE_H_
#define ORTLOOM_ATTENTION_TILE_H_

#include "attention_blocks.h"
#include "attention_softmax.h"

namespace {

// Scores of rows [begin, end) against keys that lie as [D, 16] a group.
template <class Element>
void score_all(int64_t begin, int64_t end, int64_t size, const Workspace& w,
               const typename Element::Type* const (&groups)[kGroupsPerTile], int count,
               const Ahead& ahead) {
  const Ahead nothing = nothing_ahead(w.query);
#define ORTLOOM_SCORE(R, r)                                               \
  score_rows<Element, R>(w.query + (r)*size, size, groups, count,         \
                         (r) == begin ? ahead : nothing, w.weights + (r)*kTileKeys)
  ORTLOOM_FOR_ROW_BLOCKS(begin, end, ORTLOOM_SCORE);
#undef ORTLOOM_SCORE
}

template <class Element>
void mix_all(int64_t begin, int64_t end, int64_t size, const Workspace& w,
             const TileRows<typename Element::Type>& values, Places seen, const Ahead& ahead) {
  const Ahead nothing = nothing_ahead(w.query);
#define ORTLOOM_VALUE(R, r)                                                                \
  value_rows<Element, R>(values, seen.low, seen.high, w.weights + (r)*kTileKeys, w.decay + (r), \
                         (r) == begin ? ahead : nothing, w.sums + (r)*size, size)
  ORTLOOM_FOR_ROW_BLOCKS(begin, end, ORTLOOM_VALUE);
#undef ORTLOOM_VALUE
}

// Groups outside the cache are scored as if they were another: their scores are thrown away. Gives
// the number of groups up to the last one that is in it.
template <class Type>
int fill_gaps(const bool (&mapped)[kGroupsPerTile], const Type* (&groups)[kGroupsPerTile]) {
  int last = 0;
  for (int g = 0; g < kGroupsPerTile; ++g) {
    if (mapped[g]) last = g;
  }
  for (int g = 0; g < kGroupsPerTile; ++g) {
    if (!mapped[g]) groups[g] = groups[last];
  }
  return last + 1;
}

// Scores of tokens [first, last) against the groups of keys that they see, up to `count`: on the
// diagonal the earlier tokens see fewer.
template <class Element>
void score_tokens(const AttentionStep& step, const QueryTile& tile, int64_t base, int64_t first,
                  int64_t last, const Workspace& w,
                  const typename Element::Type* const (&groups)[kGroupsPerTile], int count,
                  const Ahead& ahead) {
  const Ahead nothing = nothing_ahead(w.query);
  const int64_t heads = group_heads(step);
  const auto groups_of = [&](int64_t i) {
    const int high = visible_places(step, tile, tile.position + i, base).high;
    return static_cast<int>(smaller((high + kGroupKeys - 1) / kGroupKeys, count));
  };
  for (int64_t i = first; i < last;) {
    const int seen = groups_of(i);
    int64_t end = i + 1;
    while (end < last && groups_of(end) == seen) ++end;
    score_all<Element>(i * heads, end * heads, step.head_size, w, groups, seen,
                       i == first ? ahead : nothing);
    i = end;
  }
}

// Where a tile's keys, as [D, 16] a group, and values lie: in the pool or in a copy.
template <class Element>
struct Operands {
  const typename Element::Type* keys[kGroupsPerTile];
  TileRows<typename Element::Type> values;
};

// Tokens [first, last), which see places of the tile at `base`.
template <class Element, class P>
void attend_tokens(const AttentionStep& step, const QueryTile& tile, const Tile<P>& rows,
                   int64_t base, int64_t first, int64_t last, Operands<Element> in,
                   const Ahead& ahead, const Workspace& w) {
  const int64_t group = group_heads(step), size = step.head_size;
  const int count = fill_gaps(rows.mapped, in.keys);
  const Ahead nothing = nothing_ahead(w.query);
  const auto seen_by = [&](int64_t i) {
    return visible_places(step, tile, tile.position + i, base);
  };
  score_tokens<Element>(step, tile, base, first, last, w, in.keys, count, ahead);
  for (int64_t begin = first; begin < last;) {
    int64_t end = begin;
    while (end < last && sees_any(rows, seen_by(end))) ++end;
    if (begin == end) {
      ++begin;
      continue;
    }
    soften(step, tile, rows, base, begin, end, w);
    // Runs of tokens that see the same keys share a register block; a weight of a key that a row
    // does not see is never multiplied, so that whatever lies there cannot reach the row.
    for (int64_t i = begin; i < end;) {
      const Places seen = seen_by(i);
      int64_t next = i + 1;
      while (next < end && seen_by(next).low == seen.low && seen_by(next).high == seen.high) ++next;
      mix_all<Element>(i * group, next * group, size, w, in.values, seen,
                       i == first ? ahead : nothing);
      i = next;
    }
    begin = end;
  }
  if constexpr (kReadAhead) {
    const Places seen = seen_by(first);
    fetch_rest(ahead, size, count, seen.low, seen.high);
  }
}

// The tile's keys and values as floats.
template <class P>
Operands<Float32Element> widened_copy(const AttentionStep& step, const Tile<P>& rows,
                                      const Ahead& ahead, const Workspace& w) {
  using Element = typename P::Element;
  const int64_t size = step.head_size;
  Operands<Float32Element> copy = {};
  copy.values.stride = size;
  if constexpr (!P::kHeadMajor) copy.values = rows.values;
  for (int g = 0; g < kGroupsPerTile; ++g) {
    if (!rows.mapped[g]) continue;
    float* keys = w.keys + g * kGroupKeys * size;
    if constexpr (P::kHeadMajor) {
      float* values = w.values + g * kGroupKeys * size;
      widen_all<Element>(rows.keys.group[g], kGroupKeys * size, keys);
      widen_all<Element>(rows.values.group[g], kGroupKeys * size, values);
      copy.values.group[g] = values;
    } else {
      if constexpr (kReadAhead) fetch_tokens(ahead, size, g);
      transpose_group(rows.keys.group[g], rows.keys.stride, static_cast<int>(size), keys,
                      kGroupKeys);
    }
    copy.keys[g] = keys;
  }
  return copy;
}

template <class P>
void attend_tile(const AttentionStep& step, const QueryTile& tile, int64_t base,
                 const Ahead& ahead, const Workspace& w) {
  using Element = typename P::Element;
  // Rows see key ranges whose ends never fall, so the rows that see the tile are neighbours.
  int64_t first = tile.count, last = 0;
  for (int64_t i = 0; i < tile.count; ++i) {
    const KeyRange range = visible_keys(step, tile, tile.position + i);
    if (range.low < base + kTileKeys && range.high > base) {
      first = smaller(first, i);
      last = i + 1;
    }
  }
  if (first >= last) return;
  const int64_t low = visible_keys(step, tile, tile.position + first).low;
  const int64_t high = visible_keys(step, tile, tile.position + last - 1).high;
  const Tile<P> rows(step, tile, base, low, high);
  if (!rows.any) return;

  // One register block reads what the pool holds; several share a widened copy, which is exact.
  constexpr bool kIsFloat = sizeof(typename P::Type) == sizeof(float);
  const bool several = (last - first) * group_heads(step) > kRowsPerBlock;
  if (!P::kHeadMajor || (!kIsFloat && several)) {
    attend_tokens(step, tile, rows, base, first, last, widened_copy(step, rows, ahead, w), ahead,
                  w);
    return;
  }
  if constexpr (P::kHeadMajor) {
    Operands<Element> in = {};
    in.values = rows.values;
    for (int g = 0; g < kGroupsPerTile; ++g) in.keys[g] = rows.keys.group[g];
    attend_tokens(step, tile, rows, base, first, last, in, ahead, w);
  }
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_TILE_H_
