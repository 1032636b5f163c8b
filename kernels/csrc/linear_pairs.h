// Two rows of x at a time: the integer sums of a span by USMMLA. Included after linear_tiles.h and
// dot_i8mm.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_LINEAR_PAIRS_H_
#define ORTLOOM_LINEAR_PAIRS_H_

#include "linear_tiles.h"

namespace {

// USMMLA takes the unsigned side first, so a sum holds columns {2c, 2c + 1} x rows {2q, 2q + 1}:
// its even elements are of the first row. An odd last row is multiplied twice and read once.
template <class Weights, class Sum, int R, int NP, int DOTS, int SPAN>
struct SpanSums<Weights, Sum, R, NP, DOTS, SPAN, true> {
  static constexpr int kPairs = (R + 1) / 2;
  static constexpr int kBytesOfFour = 4 * kPanel;  // codes of four neighbours of all 16 columns
  int32x4_t sum[kPairs][NP][2 * kPanelVectors];

  __attribute__((always_inline)) void begin(const int32_t* starts) {
#pragma GCC unroll 8
    for (int q = 0; q < kPairs; ++q) {
      const int32_t first = starts[2 * q], second = starts[second_row(q)];
      const int32_t pattern[4] = {first, second, first, second};
      const int32x4_t both = vld1q_s32(pattern);
      for (int p = 0; p < NP; ++p) {
        for (int c = 0; c < 2 * kPanelVectors; ++c) sum[q][p][c] = both;
      }
    }
  }

  static constexpr int second_row(int q) { return 2 * q + 1 < R ? 2 * q + 1 : 2 * q; }

  // Eight neighbours of each of the pair's rows; x[r] holds four of row r, x[R + r] the next four.
  static int8x16_t rows_of(const int32_t* x, int q) {
    const int first = 2 * q, second = second_row(q);
    const int32_t both[4] = {x[first], x[R + first], x[second], x[R + second]};
    return vreinterpretq_s8_s32(vld1q_s32(both));
  }

  __attribute__((always_inline)) void add(const uint8_t* const* codes, const int32_t* x) {
#pragma GCC unroll 4
    for (int i = 0; i < SPAN / 8; ++i) {
      int8x16_t rows[kPairs];
#pragma GCC unroll 8
      for (int q = 0; q < kPairs; ++q) rows[q] = rows_of(x + 2 * i * R, q);
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) {
        if (R <= 2) {
          for (int d = 0; d < 2 / DOTS; ++d) {
            prefetch(codes[p] + (2 * i / DOTS + d) * kBytesOfFour + kPrefetchBytes);
          }
        }
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) {
          IVec first, second;  // four neighbours of four columns, and the four that follow
          if constexpr (DOTS == 2) {
            const IVec raw = load_codes(codes[p] + i * kBytesOfFour + v * kCodeBytes);
            first = low_nibbles(raw);
            second = high_nibbles(raw);
          } else {
            first = load_codes(codes[p] + 2 * i * kBytesOfFour + v * kCodeBytes);
            second = load_codes(codes[p] + (2 * i + 1) * kBytesOfFour + v * kCodeBytes);
          }
          const uint32x4_t a = vreinterpretq_u32_u8(first.v), b = vreinterpretq_u32_u8(second.v);
          const uint8x16_t left = vreinterpretq_u8_u32(vzip1q_u32(a, b));
          const uint8x16_t right = vreinterpretq_u8_u32(vzip2q_u32(a, b));
#pragma GCC unroll 8
          for (int q = 0; q < kPairs; ++q) {
            int32x4_t* s = &sum[q][p][2 * v];
            s[0] = vusmmlaq_s32(s[0], left, rows[q]);
            s[1] = vusmmlaq_s32(s[1], right, rows[q]);
          }
        }
      }
    }
  }

  __attribute__((always_inline)) IVec end(int r, int p, int v, int32_t) const {
    const int32x4_t left = sum[r / 2][p][2 * v], right = sum[r / 2][p][2 * v + 1];
    return from_ints(r % 2 == 0 ? vuzp1q_s32(left, right) : vuzp2q_s32(left, right));
  }
};

}  // namespace

#endif  // ORTLOOM_LINEAR_PAIRS_H_
