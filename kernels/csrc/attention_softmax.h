// The online softmax of a tile: scores become weights, maximum and sum of a row move on.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_SOFTMAX_H_
#define ORTLOOM_ATTENTION_SOFTMAX_H_

#include "attention_rows.h"

namespace {

// -inf over the scores of keys that are not seen.
template <class P>
void hide_scores(const Tile<P>& rows, Places seen, float* scores) {
  alignas(64) static const float kOffsets[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const Vec offsets = load(kOffsets), hidden = splat(kMinusInfinity);
  for (int n = 0; n < kTileVectors; ++n) {
    const int first = n * Vec::kLanes;
    float* s = scores + first;
    if (!rows.mapped[first / kGroupKeys]) {
      store(s, hidden);
    } else if (seen.low > first || seen.high < first + Vec::kLanes) {
      const Vec low = splat(static_cast<float>(seen.low - first));
      const Vec high = splat(static_cast<float>(seen.high - first));
      const Vec below = select_less(offsets, high, load(s), hidden);
      store(s, select_less(offsets, low, hidden, below));
    }
  }
}

// The scores of one row with what its tile does to them. Gives the largest.
template <class P>
float mask_scores(const AttentionStep& step, const Tile<P>& rows, Places seen, bool whole,
                  float* scores) {
  constexpr int kVectorsPerGroup = kGroupKeys / Vec::kLanes;
  if constexpr (P::Element::kScaled) {
    for (int n = 0; n < kTileVectors; ++n) {
      const int g = n / kVectorsPerGroup;
      if (!rows.mapped[g]) continue;
      float* s = scores + n * Vec::kLanes;
      store(s, mul(load(s), load(rows.scales.key[g] + n % kVectorsPerGroup * Vec::kLanes)));
    }
  }
  if (step.softcap > 0.0f) {
    const Vec cap = splat(step.softcap * kLog2E);
    for (int n = 0; n < kTileVectors; ++n) {
      float* s = scores + n * Vec::kLanes;
      store(s, mul(cap, tanh_all(load(s))));
    }
  }
  if (!whole) hide_scores(rows, seen, scores);
  Vec top = load(scores);
  for (int n = 1; n < kTileVectors; ++n) top = maximum(top, load(scores + n * Vec::kLanes));
  return reduce_max(top);
}

// Scores of one row to weights that lack the values' scales.
inline void weigh(float shift, float* scores) {
  const Vec most = splat(shift);
#pragma GCC unroll 4
  for (int n = 0; n < kTileVectors; ++n) {
    float* s = scores + n * Vec::kLanes;
    store(s, exp2_nonpositive(sub(load(s), most)));
  }
}

// The sum of one row's weights, which then get the values' scales.
template <class P>
float sum_weights(const Tile<P>& rows, float* weights) {
  constexpr int kVectorsPerGroup = kGroupKeys / Vec::kLanes;
  Vec sum = zero();
#pragma GCC unroll 16
  for (int n = 0; n < kTileVectors; ++n) {
    float* at = weights + n * Vec::kLanes;
    const Vec p = load(at);
    sum = add(sum, p);
    if constexpr (P::Element::kScaled) {
      const int g = n / kVectorsPerGroup;
      if (!rows.mapped[g]) continue;
      store(at, mul(p, load(rows.scales.value[g] + n % kVectorsPerGroup * Vec::kLanes)));
    }
  }
  return reduce_add(sum);
}

// Turns the scores of tokens [begin, end), all of which see keys of the tile at `base`, into weights;
// updates maximum and sum and leaves the decay. Pass by pass over the rows: one row is a chain of
// latencies, neighbours are not.
template <class P>
void soften(const AttentionStep& step, const QueryTile& tile, const Tile<P>& rows, int64_t base,
            int64_t begin, int64_t end, const Workspace& w) {
  const int64_t group = group_heads(step);
  for (int64_t i = begin; i < end; ++i) {
    const Places seen = visible_places(step, tile, tile.position + i, base);
    const bool whole = sees_all(rows, seen);
    for (int64_t r = i * group; r < (i + 1) * group; ++r) {
      const float tile_maximum = mask_scores(step, rows, seen, whole, w.weights + r * kTileKeys);
      const float old_maximum = w.maximum[r];
      w.maximum[r] = tile_maximum > old_maximum ? tile_maximum : old_maximum;
      w.decay[r] = old_maximum - w.maximum[r];
    }
  }
  // Whole vectors: rows behind the last one get their decay later or not at all.
  const int64_t first = begin * group, last = end * group;
  for (int64_t r = first; r < last; r += Vec::kLanes) {
    store(w.decay + r, exp2_nonpositive(load(w.decay + r)));
  }
  for (int64_t r = first; r < last; ++r) weigh(w.maximum[r], w.weights + r * kTileKeys);
  for (int64_t r = first; r < last; ++r) {
    w.sum[r] = w.sum[r] * w.decay[r] + sum_weights(rows, w.weights + r * kTileKeys);
  }
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_SOFTMAX_H_
