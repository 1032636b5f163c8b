// Paged attention over a Vec type; each tier's translation unit includes this after its vec_*.h.
//
// Everything here has internal linkage and calls nothing from the C++ library: the tiers are built
// with different instruction sets, and a shared inline function would let the linker keep the copy
// of a tier that the CPU cannot run.
//
// Order of arithmetic of one query row, the same on every path and at every thread count:
//   score   = chain of fma over d = 0 .. D-1, for each key
//   tile    = 64 keys at an absolute multiple of 64: maximum, exp2, sum in a fixed lane tree,
//             output sums as a chain over the visible keys in ascending order
//   partition = 256 keys at an absolute multiple of 256, tiles in ascending order (online softmax)
//   row     = left fold over the partitions in ascending order, then head sink, then division
// Tiles and partitions in which a row sees no key are left out. (Online softmax with split merge:
// Milakov and Gimelshein 2018; Dao 2023, Flash-Decoding.)

#ifndef ORTLOOM_ATTENTION_BODY_H_
#define ORTLOOM_ATTENTION_BODY_H_

#include "attention.h"
#include "attention_blocks.h"
#include "attention_prepare.h"

namespace {

using ortloom::AttentionKernels;
using ortloom::kPartitionKeys;
using ortloom::PartitionRange;

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

size_t scratch_floats(const AttentionStep& step, int64_t row_count) {
  const size_t size = static_cast<size_t>(step.head_size);
  const size_t rows = static_cast<size_t>(row_count);
  return 2 * size * kTileKeys + 3 * padded(rows * size) + padded(rows * kTileKeys) + 5 * padded(rows);
}

Workspace carve(const AttentionStep& step, int64_t row_count, float* scratch) {
  const size_t size = static_cast<size_t>(step.head_size);
  const size_t rows = static_cast<size_t>(row_count);
  Workspace w;
  w.keys = scratch;
  w.values = w.keys + size * kTileKeys;
  w.query = w.values + size * kTileKeys;
  w.weights = w.query + padded(rows * size);
  w.decay = w.weights + padded(rows * kTileKeys);
  w.maximum = w.decay + padded(rows);
  w.sum = w.maximum + padded(rows);
  w.sums = w.sum + padded(rows);
  w.total_maximum = w.sums + padded(rows * size);
  w.total_sum = w.total_maximum + padded(rows);
  w.total_sums = w.total_sum + padded(rows);
  return w;
}

int64_t group_heads(const AttentionStep& step) { return step.heads / step.kv_heads; }

void reset(int64_t rows, int64_t size, float* maximum, float* sum, float* sums) {
  for (int64_t r = 0; r < rows; ++r) {
    maximum[r] = kMinusInfinity;
    sum[r] = 0.0f;
  }
  for (int64_t i = 0; i < rows * size; ++i) sums[i] = 0.0f;
}

// Queries carry scale and log2(e), so that scores are exponents of 2. With a soft cap they carry
// scale / cap and the rest follows tanh.
void prepare_queries(const AttentionStep& step, const QueryTile& tile, float* query) {
  const int64_t group = group_heads(step);
  const float factor = step.softcap > 0.0f ? step.scale / step.softcap : step.scale * kLog2E;
  for (int64_t i = 0; i < tile.count; ++i) {
    const float* in = step.query + (tile.first + i) * step.query_stride +
                      tile.kv_head * group * step.head_size;
    for (int64_t g = 0; g < group; ++g) {
      prepare_head(step, in + g * step.head_size, step.q_norm, tile.position + i, factor,
                   query + (i * group + g) * step.head_size);
    }
  }
}

// Absolute keys [low, high) that a token at `position` sees.
struct KeyRange {
  int64_t low, high;
};
KeyRange visible_keys(const AttentionStep& step, const QueryTile& tile, int64_t position) {
  const int64_t high = step.causal ? position + 1 : tile.kv_length;
  const int64_t low = step.window > 0 ? larger(0, position - step.window + 1) : 0;
  return {low, high};
}

// Turns the scores of one row into weights; updates maximum and sum and leaves the decay.
// False if the row sees no key of the tile (then nothing changes).
template <class P>
bool soften(const AttentionStep& step, const Tile<P>& rows, int low, int high, float* scores,
            float* maximum_of_row, float* sum_of_row, float* decay) {
  constexpr bool kScaled = P::Element::kScaled;
  constexpr int kVectorsPerGroup = kGroupKeys / Vec::kLanes;
  bool any = false;
  for (int g = 0; g < kGroupsPerTile; ++g) {
    const int begin = g * kGroupKeys, end = begin + kGroupKeys;
    if (low < end && high > begin && rows.mapped[g]) any = true;
  }
  if (!any) return false;
  if constexpr (kScaled) {
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
  const float tile_maximum = reduce_max(top);
  const float old_maximum = *maximum_of_row;
  const float new_maximum = tile_maximum > old_maximum ? tile_maximum : old_maximum;
  const Vec shift = splat(new_maximum);
  Vec sum = zero();
  for (int n = 0; n < kTileVectors; ++n) {
    float* s = scores + n * Vec::kLanes;
    const Vec p = exp2_nonpositive(sub(load(s), shift));
    sum = add(sum, p);
    const int g = n / kVectorsPerGroup;
    if (kScaled && rows.mapped[g]) {
      store(s, mul(p, load(rows.scales.value[g] + n % kVectorsPerGroup * Vec::kLanes)));
    } else {
      store(s, p);
    }
  }
  *decay = exp2_scalar(old_maximum - new_maximum);
  *sum_of_row = *sum_of_row * *decay + reduce_add(sum);
  *maximum_of_row = new_maximum;
  return true;
}

// Scores of rows [begin, end) against keys that lie as [D, 16] a group.
template <class Element>
void score_all(int64_t begin, int64_t end, int64_t size, const Workspace& w,
               const typename Element::Type* const (&groups)[kGroupsPerTile], int count) {
#define ORTLOOM_SCORE(R, r) \
  score_rows<Element, R>(w.query + (r)*size, size, groups, count, w.weights + (r)*kTileKeys)
  ORTLOOM_FOR_ROW_BLOCKS(begin, end, ORTLOOM_SCORE);
#undef ORTLOOM_SCORE
}

template <class Element>
void mix_all(int64_t begin, int64_t end, int64_t size, const Workspace& w,
             const TileRows<typename Element::Type>& values, int low, int high) {
#define ORTLOOM_VALUE(R, r)                                                               \
  value_rows<Element, R>(values, low, high, w.weights + (r)*kTileKeys, w.decay + (r),     \
                         w.sums + (r)*size, size)
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

template <class P>
void attend_tile(const AttentionStep& step, const QueryTile& tile, int64_t base,
                 const Workspace& w) {
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
  if (copy_keys) {
    const float* keys[kGroupsPerTile] = {};
    for (int g = 0; g < kGroupsPerTile; ++g) {
      if (!rows.mapped[g]) continue;
      float* to = w.keys + g * kGroupKeys * size;
      if constexpr (P::kHeadMajor) {
        widen_all<Element>(rows.keys.group[g], kGroupKeys * size, to);
      } else {
        transpose_group(rows.keys.group[g], rows.keys.stride, static_cast<int>(size), to,
                        kGroupKeys);
      }
      keys[g] = to;
    }
    const int count = fill_gaps(rows.mapped, keys);
    score_all<Float32Element>(first * group, last * group, size, w, keys, count);
  } else {
    const Type* keys[kGroupsPerTile];
    for (int g = 0; g < kGroupsPerTile; ++g) keys[g] = rows.keys.group[g];
    const int count = fill_gaps(rows.mapped, keys);
    score_all<Element>(first * group, last * group, size, w, keys, count);
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
  for (int64_t i = first; i < last;) {
    const KeyRange range = visible_keys(step, tile, tile.position + i);
    const int run_low = static_cast<int>(larger(range.low - base, 0));
    const int run_high = static_cast<int>(smaller(range.high - base, kTileKeys));
    int64_t end = i;
    bool seen = true;
    for (; end < last; ++end) {
      const KeyRange next = visible_keys(step, tile, tile.position + end);
      if (larger(next.low - base, 0) != run_low ||
          smaller(next.high - base, kTileKeys) != run_high) {
        break;
      }
      for (int64_t r = end * group; r < (end + 1) * group; ++r) {
        seen = soften(step, rows, run_low, run_high, w.weights + r * kTileKeys, w.maximum + r,
                      w.sum + r, w.decay + r);
      }
    }
    if (seen && copy_values) {
      mix_all<Float32Element>(i * group, end * group, size, w, values, run_low, run_high);
    } else if (seen) {
      mix_all<Element>(i * group, end * group, size, w, rows.values, run_low, run_high);
    }
    i = end;
  }
}

void attend_one_partition(const AttentionStep& step, const QueryTile& tile, int64_t partition,
                          const Workspace& w) {
  const int64_t rows = tile.count * group_heads(step);
  reset(rows, step.head_size, w.maximum, w.sum, w.sums);
  const int64_t begin = partition * kPartitionKeys;
  const int64_t end = smaller(begin + kPartitionKeys, tile.kv_length);
  with_pool(step, [&](auto pool) {
    for (int64_t base = begin; base < end; base += kTileKeys) {
      attend_tile<decltype(pool)>(step, tile, base, w);
    }
  });
}

// Folds one partition's result into the totals.
void fold(int64_t rows, int64_t size, const float* maximum, const float* sum, const float* sums,
          const Workspace& w) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* from = sums + r * size;
    float* into = w.total_sums + r * size;
    if (maximum[r] == kMinusInfinity) continue;
    if (w.total_maximum[r] == kMinusInfinity) {
      w.total_maximum[r] = maximum[r];
      w.total_sum[r] = sum[r];
      for (int64_t d = 0; d < size; ++d) into[d] = from[d];
      continue;
    }
    const float top = maximum[r] > w.total_maximum[r] ? maximum[r] : w.total_maximum[r];
    const float old_factor = exp2_scalar(w.total_maximum[r] - top);
    const float new_factor = exp2_scalar(maximum[r] - top);
    w.total_maximum[r] = top;
    w.total_sum[r] = w.total_sum[r] * old_factor + sum[r] * new_factor;
    const Vec a = splat(old_factor), b = splat(new_factor);
    for (int64_t d = 0; d < size; d += Vec::kLanes) {
      store(into + d, fma(b, load(from + d), mul(a, load(into + d))));
    }
  }
}

// Adds the head sink to the denominator, divides, and writes the output rows.
void finish(const AttentionStep& step, const QueryTile& tile, const Workspace& w) {
  const int64_t group = group_heads(step), size = step.head_size;
  for (int64_t r = 0; r < tile.count * group; ++r) {
    const int64_t head = tile.kv_head * group + r % group;
    float* out = step.output + ((tile.first + r / group) * step.heads + head) * size;
    if (w.total_maximum[r] == kMinusInfinity) {
      for (int64_t d = 0; d < size; ++d) out[d] = 0.0f;
      continue;
    }
    float numerator = 1.0f, denominator = w.total_sum[r];
    if (step.sinks != nullptr) {
      const float sink = step.sinks[head] * kLog2E;
      const float top = sink > w.total_maximum[r] ? sink : w.total_maximum[r];
      numerator = exp2_scalar(w.total_maximum[r] - top);
      denominator = denominator * numerator + exp2_scalar(sink - top);
    }
    const Vec factor = splat(numerator / denominator);
    for (int64_t d = 0; d < size; d += Vec::kLanes) {
      store(out + d, mul(factor, load(w.total_sums + r * size + d)));
    }
  }
}

void attend(const AttentionStep& step, const QueryTile& tile, float* scratch) {
  const int64_t rows = tile.count * group_heads(step);
  const Workspace w = carve(step, rows, scratch);
  prepare_queries(step, tile, w.query);
  reset(rows, step.head_size, w.total_maximum, w.total_sum, w.total_sums);
  const PartitionRange range = ortloom::visible_partitions(step, tile);
  for (int64_t p = range.first; p < range.last; ++p) {
    attend_one_partition(step, tile, p, w);
    fold(rows, step.head_size, w.maximum, w.sum, w.sums, w);
  }
  finish(step, tile, w);
}

void attend_partition(const AttentionStep& step, const QueryTile& tile, int64_t partition,
                      float* scratch, float* partial) {
  const int64_t rows = tile.count * group_heads(step);
  Workspace w = carve(step, rows, scratch);
  w.maximum = partial;
  w.sum = partial + rows;
  w.sums = partial + 2 * rows;
  prepare_queries(step, tile, w.query);
  attend_one_partition(step, tile, partition, w);
}

void merge(const AttentionStep& step, const QueryTile& tile, int64_t first, int64_t last,
           const float* partials, float* scratch) {
  const int64_t rows = tile.count * group_heads(step);
  const Workspace w = carve(step, rows, scratch);
  reset(rows, step.head_size, w.total_maximum, w.total_sum, w.total_sums);
  const size_t stride = ortloom::partial_floats(step, rows);
  for (int64_t p = first; p < last; ++p) {
    const float* partial = partials + static_cast<size_t>(p - first) * stride;
    fold(rows, step.head_size, partial, partial + rows, partial + 2 * rows, w);
  }
  finish(step, tile, w);
}

constexpr AttentionKernels kKernels = {scratch_floats, store_tokens, attend, attend_partition,
                                       merge};

}  // namespace

#endif  // ORTLOOM_ATTENTION_BODY_H_
