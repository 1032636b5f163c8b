// Register blocks: a few query rows against a tile of keys or values.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_BLOCKS_H_
#define ORTLOOM_ATTENTION_BLOCKS_H_

#include "attention.h"
#include "attention_math.h"

namespace {

using ortloom::kGroupKeys;
using ortloom::kTileKeys;

constexpr int kGroupsPerTile = kTileKeys / kGroupKeys;
constexpr int kTileVectors = kTileKeys / Vec::kLanes;

// scores[r][0 .. NV*lanes) = sum over d of query[r][d] * keys[d][..]
template <int R, int NV>
inline void score_block(const float* query, int64_t size, const float* keys, float* scores) {
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) sum[r][n] = zero();
  }
  for (int64_t d = 0; d < size; ++d) {
    Vec k[NV];
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) k[n] = load(keys + d * kTileKeys + n * Vec::kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Vec q = splat(query[r * size + d]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) sum[r][n] = fma(q, k[n], sum[r][n]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) store(scores + r * kTileKeys + n * Vec::kLanes, sum[r][n]);
  }
}

template <int R>
void score_rows(const float* query, int64_t size, const float* keys, float* scores) {
  for (int n = 0; n < kTileVectors; n += kVectorsPerBlock) {
    score_block<R, kVectorsPerBlock>(query, size, keys + n * Vec::kLanes,
                                     scores + n * Vec::kLanes);
  }
}

// Where the keys or values of a tile lie: one pointer a group of 16, null if not in the cache.
struct TileRows {
  const float* group[kGroupsPerTile];
  ptrdiff_t stride;
};

// sums[r][..] = sums[r][..] * decay[r] + sum over keys low <= j < high of weights[r][j] * value[j]
template <int R, int NV>
inline void value_block(const TileRows& values, int64_t column, int low, int high,
                        const float* weights, const float* decay, float* sums, int64_t size) {
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const Vec factor = splat(decay[r]);
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      sum[r][n] = mul(factor, load(sums + r * size + column + n * Vec::kLanes));
    }
  }
  for (int j = low; j < high;) {
    const int group = j / kGroupKeys;
    const int stop = static_cast<int>(smaller(high, (group + 1) * kGroupKeys));
    if (values.group[group] == nullptr) {
      j = stop;
      continue;
    }
    const float* row = values.group[group] + (j % kGroupKeys) * values.stride + column;
    for (; j < stop; ++j, row += values.stride) {
      Vec v[NV];
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) v[n] = load(row + n * Vec::kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec w = splat(weights[r * kTileKeys + j]);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) sum[r][n] = fma(w, v[n], sum[r][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) store(sums + r * size + column + n * Vec::kLanes, sum[r][n]);
  }
}

template <int R>
void value_rows(const TileRows& values, int low, int high, const float* weights,
                const float* decay, float* sums, int64_t size) {
  constexpr int kStep = kVectorsPerBlock * Vec::kLanes;
  int64_t column = 0;
  for (; column + kStep <= size; column += kStep) {
    value_block<R, kVectorsPerBlock>(values, column, low, high, weights, decay, sums, size);
  }
  for (; column < size; column += Vec::kLanes) {
    value_block<R, 1>(values, column, low, high, weights, decay, sums, size);
  }
}

// Calls step(R) for R = kRowsPerBlock as often as it fits, then once for the rest.
#define ORTLOOM_FOR_ROW_BLOCKS(begin, end, CALL)                             \
  do {                                                                       \
    int64_t r_ = (begin);                                                    \
    for (; r_ + kRowsPerBlock <= (end); r_ += kRowsPerBlock) {               \
      CALL(kRowsPerBlock, r_);                                               \
    }                                                                        \
    switch ((end)-r_) {                                                      \
      case 5: CALL(5, r_); break;                                            \
      case 4: CALL(4, r_); break;                                            \
      case 3: CALL(3, r_); break;                                            \
      case 2: CALL(2, r_); break;                                            \
      case 1: CALL(1, r_); break;                                            \
      default: break;                                                        \
    }                                                                        \
  } while (false)
static_assert(kRowsPerBlock <= 6, "ORTLOOM_FOR_ROW_BLOCKS covers remainders up to 5");

}  // namespace

#endif  // ORTLOOM_ATTENTION_BLOCKS_H_
