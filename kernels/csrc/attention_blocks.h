// Register blocks: a few query rows against a tile of keys or values.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_BLOCKS_H_
#define ORTLOOM_ATTENTION_BLOCKS_H_

#include "attention_ahead.h"

namespace {

// scores[r][..] = sum over d of query[r][d] * key[d], for the NV vectors of keys of the tile from
// vector `first` on. A group of keys is [D, 16].
template <class Element, int R, int NV>
inline void score_block(const float* query, int64_t size,
                        const typename Element::Type* const (&groups)[kGroupsPerTile], int first,
                        const Ahead& ahead, float* scores) {
  constexpr int kVectorsPerGroup = kGroupKeys / Vec::kLanes;
  constexpr int kGroups = (NV + kVectorsPerGroup - 1) / kVectorsPerGroup;
  const typename Element::Type* keys[NV];
  const char* next[kGroups];
#pragma GCC unroll 4
  for (int g = 0; g < kGroups; ++g) next[g] = ahead.keys[first / kVectorsPerGroup + g];
#pragma GCC unroll 8
  for (int n = 0; n < NV; ++n) {
    const int vector = first + n;
    keys[n] = groups[vector / kVectorsPerGroup] + vector % kVectorsPerGroup * Vec::kLanes;
  }
  Vec sum[R][NV];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) sum[r][n] = zero();
  }
#pragma GCC unroll 4
  for (int64_t d = 0; d < size; ++d) {
    if constexpr (kReadAhead) {
#pragma GCC unroll 4
      for (int g = 0; g < kGroups; ++g) fetch(next[g] + d * ahead.key_step);
    }
    // The fewer of the two stay in registers.
    if constexpr (R < NV) {
      Vec q[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) q[r] = splat(query[r * size + d]);
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) {
        const Vec k = Element::widen(keys[n] + d * kGroupKeys);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) sum[r][n] = fma(q[r], k, sum[r][n]);
      }
    } else {
      Vec k[NV];
#pragma GCC unroll 8
      for (int n = 0; n < NV; ++n) k[n] = Element::widen(keys[n] + d * kGroupKeys);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const Vec q = splat(query[r * size + d]);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) sum[r][n] = fma(q, k[n], sum[r][n]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) {
      store(scores + r * kTileKeys + (first + n) * Vec::kLanes, sum[r][n]);
    }
  }
}

// The first `count` groups of a tile; whole register blocks, so that more may be scored.
template <class Element, int R>
void score_rows(const float* query, int64_t size,
                const typename Element::Type* const (&groups)[kGroupsPerTile], int count,
                const Ahead& ahead, float* scores) {
  constexpr int kMost = vectors_per_block(R);
  static_assert(kTileVectors % kMost == 0, "a block ends where the tile does");
  const int vectors = count * (kGroupKeys / Vec::kLanes);
  if (vectors == 1) {
    score_block<Element, R, 1>(query, size, groups, 0, ahead, scores);
    return;
  }
  for (int n = 0; n < vectors;) {
    if (kMost > kVectorsPerBlock && vectors - n > kVectorsPerBlock) {
      score_block<Element, R, kMost>(query, size, groups, n, ahead, scores);
      n += kMost;
    } else {
      score_block<Element, R, kVectorsPerBlock>(query, size, groups, n, ahead, scores);
      n += kVectorsPerBlock;
    }
  }
}

// A number that is known when a template is made.
template <int N>
struct Count {
  constexpr operator int() const { return N; }
};

// sums[r][..] = sums[r][..] * decay[r] + sum over keys low <= j < high of weights[r][j] * value[j]
template <class Element, int R, int NV>
inline void value_block(const TileRows<typename Element::Type>& values, int64_t column, int low,
                        int high, const float* weights, const float* decay, const Ahead& ahead,
                        float* sums, int64_t size) {
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
    const typename Element::Type* row =
        values.group[group] + (j % kGroupKeys) * values.stride + column;
    const char* next = ahead.values[group] + (j % kGroupKeys) * ahead.value_stride +
                       column * ahead.element;
#pragma GCC unroll 2
    for (; j < stop; ++j, row += values.stride, next += ahead.value_stride) {
      if constexpr (kReadAhead) {
        constexpr int kBytes = NV * Vec::kLanes * static_cast<int>(sizeof(*row));
#pragma GCC unroll 8
        for (int byte = 0; byte < kBytes; byte += 64) fetch(next + byte);
      }
      if constexpr (R < NV) {
        Vec w[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) w[r] = splat(weights[r * kTileKeys + j]);
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) {
          const Vec v = Element::widen(row + n * Vec::kLanes);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) sum[r][n] = fma(w[r], v, sum[r][n]);
        }
      } else {
        Vec v[NV];
#pragma GCC unroll 8
        for (int n = 0; n < NV; ++n) v[n] = Element::widen(row + n * Vec::kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          const Vec w = splat(weights[r * kTileKeys + j]);
#pragma GCC unroll 8
          for (int n = 0; n < NV; ++n) sum[r][n] = fma(w, v[n], sum[r][n]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int n = 0; n < NV; ++n) store(sums + r * size + column + n * Vec::kLanes, sum[r][n]);
  }
}

template <class Element, int R>
void value_rows(const TileRows<typename Element::Type>& values, int low, int high,
                const float* weights, const float* decay, const Ahead& ahead, float* sums,
                int64_t size) {
  constexpr int kMost = vectors_per_block(R);
  int64_t column = 0;
  const auto columns = [&](auto vectors) {
    constexpr int kStep = vectors * Vec::kLanes;
    for (; column + kStep <= size; column += kStep) {
      value_block<Element, R, vectors>(values, column, low, high, weights, decay, ahead, sums, size);
    }
  };
  columns(Count<kMost>());
  if constexpr (kMost > kVectorsPerBlock) columns(Count<kVectorsPerBlock>());
  columns(Count<1>());
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
