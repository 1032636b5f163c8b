// One tile of 64 keys against the query rows of a task.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_TILE_H_
#define ORTLOOM_ATTENTION_TILE_H_

#include "attention_blocks.h"
#include "attention_prepare.h"

namespace {

// Scratch of a task, carved from one allocation. Rows are tokens x query heads of the KV head.
struct Workspace {
  float* keys;      // [4, D, 16] keys of a tile as floats, transposed
  float* values;    // [64, D] values of a tile as floats
  float* query;     // [rows, D] prepared queries
  float* weights;   // [rows, 64] scores, then softmax weights
  float* decay;     // [rows] factor for the earlier sums
  float* maximum;   // [rows] of the current partition, in log2 units
  float* sum;       // [rows]
  float* sums;      // [rows, D]
  float* total_maximum;  // the same, folded over partitions
  float* total_sum;
  float* total_sums;
};

int64_t group_heads(const AttentionStep& step) { return step.heads / step.kv_heads; }

// Absolute keys [low, high) that a token at `position` sees.
struct KeyRange {
  int64_t low, high;
};
KeyRange visible_keys(const AttentionStep& step, const QueryTile& tile, int64_t position) {
  const int64_t high = step.causal ? position + 1 : tile.kv_length;
  const int64_t low = step.window > 0 ? larger(0, position - step.window + 1) : 0;
  return {low, high};
}

// Absolute keys that some token of the tile sees; those of its tokens do not fall.
KeyRange visible_keys(const AttentionStep& step, const QueryTile& tile) {
  return {visible_keys(step, tile, tile.position).low,
          visible_keys(step, tile, tile.position + tile.count - 1).high};
}

// The scores of one row with what its tile does to them; -inf where it sees no key. Gives the
// largest.
template <class P>
float mask_scores(const AttentionStep& step, const Tile<P>& rows, int low, int high,
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
  for (int g = 0; g < kGroupsPerTile; ++g) {
    const int begin = g * kGroupKeys, end = begin + kGroupKeys;
    if (!rows.mapped[g] || low > begin || high < end) {
      for (int j = begin; j < end; ++j) {
        const bool seen = rows.mapped[g] && j >= low && j < high;
        if (!seen) scores[j] = kMinusInfinity;
      }
    }
  }
  Vec top = load(scores);
  for (int n = 1; n < kTileVectors; ++n) top = maximum(top, load(scores + n * Vec::kLanes));
  return reduce_max(top);
}

// Scores of one row to weights; gives their sum.
template <class P>
float weigh(const Tile<P>& rows, float shift, float* scores) {
  constexpr int kVectorsPerGroup = kGroupKeys / Vec::kLanes;
  const Vec most = splat(shift);
  Vec sum = zero();
  for (int n = 0; n < kTileVectors; ++n) {
    float* s = scores + n * Vec::kLanes;
    const Vec p = exp2_nonpositive(sub(load(s), most));
    sum = add(sum, p);
    const int g = n / kVectorsPerGroup;
    if (P::Element::kScaled && rows.mapped[g]) {
      store(s, mul(p, load(rows.scales.value[g] + n % kVectorsPerGroup * Vec::kLanes)));
    } else {
      store(s, p);
    }
  }
  return reduce_add(sum);
}

// Turns the scores of rows [begin, end), which see the same keys, into weights; updates maximum and
// sum and leaves the decay. False if they see no key of the tile (then nothing changes). Pass by
// pass over the rows: one row is a chain of latencies, neighbours are not.
template <class P>
bool soften(const AttentionStep& step, const Tile<P>& rows, int low, int high, int64_t begin,
            int64_t end, const Workspace& w) {
  bool any = false;
  for (int g = 0; g < kGroupsPerTile; ++g) {
    const int first = g * kGroupKeys;
    if (low < first + kGroupKeys && high > first && rows.mapped[g]) any = true;
  }
  if (!any) return false;
  for (int64_t r = begin; r < end; ++r) {
    const float tile_maximum = mask_scores(step, rows, low, high, w.weights + r * kTileKeys);
    const float old_maximum = w.maximum[r];
    w.maximum[r] = tile_maximum > old_maximum ? tile_maximum : old_maximum;
    w.decay[r] = old_maximum - w.maximum[r];
  }
  // Whole vectors: rows behind the last one get their decay later or not at all.
  for (int64_t r = begin; r < end; r += Vec::kLanes) {
    store(w.decay + r, exp2_nonpositive(load(w.decay + r)));
  }
  for (int64_t r = begin; r < end; ++r) {
    const float sum = weigh(rows, w.maximum[r], w.weights + r * kTileKeys);
    w.sum[r] = w.sum[r] * w.decay[r] + sum;
  }
  return true;
}

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
             const TileRows<typename Element::Type>& values, int low, int high,
             const Ahead& ahead) {
  const Ahead nothing = nothing_ahead(w.query);
#define ORTLOOM_VALUE(R, r)                                                           \
  value_rows<Element, R>(values, low, high, w.weights + (r)*kTileKeys, w.decay + (r), \
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

// The rest of what comes next, behind the groups that were scored and around the keys that were
// mixed in.
inline void fetch_rest(const Ahead& ahead, int64_t size, int count, int low, int high) {
  for (int g = count; g < kGroupsPerTile; ++g) {
    for (int64_t byte = 0; byte < size * ahead.key_step; byte += 64) fetch(ahead.keys[g] + byte);
  }
  for (int j = 0; j < kTileKeys; ++j) {
    if (j >= low && j < high) continue;
    const char* token = ahead.values[j / kGroupKeys] + j % kGroupKeys * ahead.value_stride;
    for (int64_t byte = 0; byte < size * ahead.element; byte += 64) fetch(token + byte);
  }
}

// Keys of the canonical layout come next token by token.
template <class P>
inline void fetch_tokens(const Ahead& ahead, int64_t size, int g) {
  for (int j = 0; j < kGroupKeys; ++j) {
    const char* token = ahead.keys[g] + j * ahead.value_stride;
    for (int64_t byte = 0; byte < size * ahead.element; byte += 64) fetch(token + byte);
  }
}

template <class P>
void attend_tile(const AttentionStep& step, const QueryTile& tile, int64_t base,
                 const Ahead& ahead, const Workspace& w) {
  using Element = typename P::Element;
  using Type = typename P::Type;
  const int64_t group = group_heads(step), size = step.head_size;
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
  constexpr bool kIsFloat = sizeof(Type) == sizeof(float);
  const bool copy_keys =
      !P::kHeadMajor || (!kIsFloat && (last - first) * group > kRowsPerBlock);
  const bool copy_values = !kIsFloat && (last - first) * group > kRowsPerBlock;
  int count;
  if (copy_keys) {
    const float* keys[kGroupsPerTile] = {};
    for (int g = 0; g < kGroupsPerTile; ++g) {
      if (!rows.mapped[g]) continue;
      float* to = w.keys + g * kGroupKeys * size;
      if constexpr (P::kHeadMajor) {
        widen_all<Element>(rows.keys.group[g], kGroupKeys * size, to);
      } else {
        if constexpr (kReadAhead) fetch_tokens<P>(ahead, size, g);
        transpose_group(rows.keys.group[g], rows.keys.stride, static_cast<int>(size), to,
                        kGroupKeys);
      }
      keys[g] = to;
    }
    count = fill_gaps(rows.mapped, keys);
    score_all<Float32Element>(first * group, last * group, size, w, keys, count, ahead);
  } else {
    const Type* keys[kGroupsPerTile];
    for (int g = 0; g < kGroupsPerTile; ++g) keys[g] = rows.keys.group[g];
    count = fill_gaps(rows.mapped, keys);
    score_all<Element>(first * group, last * group, size, w, keys, count, ahead);
  }
  TileRows<float> values = {};
  if (copy_values) {
    values.stride = size;
    for (int g = 0; g < kGroupsPerTile; ++g) {
      if (!rows.mapped[g]) continue;
      float* to = w.values + g * kGroupKeys * size;
      widen_all<Element>(rows.values.group[g], kGroupKeys * size, to);
      values.group[g] = to;
    }
  }

  // Runs of tokens that see the same keys share a register block; a weight of a key that a row does
  // not see is never multiplied, so that whatever lies there cannot reach the row.
  const Ahead nothing = nothing_ahead(w.query);
  for (int64_t i = first; i < last;) {
    const KeyRange range = visible_keys(step, tile, tile.position + i);
    const int run_low = static_cast<int>(larger(range.low - base, 0));
    const int run_high = static_cast<int>(smaller(range.high - base, kTileKeys));
    int64_t end = i + 1;
    for (; end < last; ++end) {
      const KeyRange next = visible_keys(step, tile, tile.position + end);
      if (larger(next.low - base, 0) != run_low ||
          smaller(next.high - base, kTileKeys) != run_high) {
        break;
      }
    }
    const bool seen = soften(step, rows, run_low, run_high, i * group, end * group, w);
    const Ahead& mixed_ahead = i == first ? ahead : nothing;
    if (seen && copy_values) {
      mix_all<Float32Element>(i * group, end * group, size, w, values, run_low, run_high,
                              mixed_ahead);
    } else if (seen) {
      mix_all<Element>(i * group, end * group, size, w, rows.values, run_low, run_high,
                       mixed_ahead);
    }
    if constexpr (kReadAhead) {
      if (i == first) fetch_rest(ahead, size, count, run_low, run_high);
    }
    i = end;
  }
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_TILE_H_
