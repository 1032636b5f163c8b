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
#include "attention_tile.h"

namespace {

using ortloom::AttentionKernels;
using ortloom::kPartitionKeys;
using ortloom::PartitionRange;
using ortloom::Upcoming;

size_t scratch_floats(const AttentionStep& step, int64_t row_count) {
  const size_t size = static_cast<size_t>(step.head_size);
  const size_t rows = static_cast<size_t>(row_count);
  return 2 * size * kTileKeys + 3 * padded(rows * size) + padded(rows * kTileKeys) +
         5 * padded(rows) + Vec::kLanes;
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
  w.maximum = w.decay + padded(rows) + Vec::kLanes;
  w.sum = w.maximum + padded(rows);
  w.sums = w.sum + padded(rows);
  w.total_maximum = w.sums + padded(rows * size);
  w.total_sum = w.total_maximum + padded(rows);
  w.total_sums = w.total_sum + padded(rows);
  return w;
}

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
    if constexpr (kReadAhead) {
      // The rows after the next, and those of the output, which are needed at the end.
      const bool more = i + 2 < tile.count;
      const float* out = step.output + ((tile.first + i) * step.heads + tile.kv_head * group) *
                                           step.head_size;
      for (int64_t d = 0; d < group * step.head_size; d += 16) {
        if (more) fetch(reinterpret_cast<const char*>(in + 2 * step.query_stride + d));
        __builtin_prefetch(out + d, 1, 2);
      }
    }
    for (int64_t g = 0; g < group; ++g) {
      prepare_head(step, in + g * step.head_size, step.q_norm, tile.position + i, factor,
                   query + (i * group + g) * step.head_size);
    }
  }
}

// The keys of a partition that some row of the tile may see, from a tile's edge on.
KeyRange partition_keys(const AttentionStep& step, const QueryTile& tile, int64_t partition) {
  const KeyRange range = visible_keys(step, tile);
  const int64_t begin = partition * kPartitionKeys;
  return {larger(begin, range.low / kTileKeys * kTileKeys),
          smaller(begin + kPartitionKeys, range.high)};
}

template <class P>
Ahead tile_ahead(const AttentionStep& step, const QueryTile& tile, int64_t base,
                 const Workspace& w) {
  const KeyRange range = visible_keys(step, tile);
  return ahead_of(Tile<P>(step, tile, base, range.low, range.high), w.query);
}

void attend_one_partition(const AttentionStep& step, const QueryTile& tile, int64_t partition,
                          Upcoming next, const Workspace& w) {
  const int64_t rows = tile.count * group_heads(step);
  reset(rows, step.head_size, w.maximum, w.sum, w.sums);
  const auto [begin, end] = partition_keys(step, tile, partition);
  with_pool(step, [&, begin = begin, end = end](auto pool) {
    using P = decltype(pool);
    for (int64_t base = begin; base < end; base += kTileKeys) {
      Ahead ahead = nothing_ahead(w.query);
      if constexpr (kReadAhead) {
        if (base + kTileKeys < end) {
          ahead = tile_ahead<P>(step, tile, base + kTileKeys, w);
        } else if (next.tile != nullptr) {
          const KeyRange keys = partition_keys(step, *next.tile, next.partition);
          ahead = tile_ahead<P>(step, *next.tile, keys.low, w);
        }
      }
      attend_tile<P>(step, tile, base, ahead, w);
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

void attend(const AttentionStep& step, const QueryTile& tile, Upcoming next, float* scratch) {
  const int64_t rows = tile.count * group_heads(step);
  const Workspace w = carve(step, rows, scratch);
  prepare_queries(step, tile, w.query);
  reset(rows, step.head_size, w.total_maximum, w.total_sum, w.total_sums);
  const PartitionRange range = ortloom::visible_partitions(step, tile);
  for (int64_t p = range.first; p < range.last; ++p) {
    attend_one_partition(step, tile, p, p + 1 < range.last ? Upcoming{&tile, p + 1} : next, w);
    fold(rows, step.head_size, w.maximum, w.sum, w.sums, w);
  }
  finish(step, tile, w);
}

void attend_partition(const AttentionStep& step, const QueryTile& tile, int64_t partition,
                      Upcoming next, float* scratch, float* partial) {
  const int64_t rows = tile.count * group_heads(step);
  Workspace w = carve(step, rows, scratch);
  w.maximum = partial;
  w.sum = partial + rows;
  w.sums = partial + 2 * rows;
  prepare_queries(step, tile, w.query);
  attend_one_partition(step, tile, partition, next, w);
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

constexpr AttentionKernels kKernels = {kTargetRows,      scratch_floats, store_tokens, attend,
                                       attend_partition, merge};

}  // namespace

#endif  // ORTLOOM_ATTENTION_BODY_H_
