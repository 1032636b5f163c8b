// Dot products of bfloat16 pairs with AVX512_BF16: x is rounded to bfloat16, and a step of the fp32
// chain takes two products. Subnormal numbers count as zero, as VDPBF16PS has it. Included after
// dot_avx512.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_LINEAR_BRAIN_H_
#define ORTLOOM_LINEAR_BRAIN_H_

#include "linear_tiles.h"

namespace {

template <>
struct BrainDots<true> {
  // Rows of a tile [R, k] in the order of their use: [ceil(k / 2)][R] pairs of neighbours, the
  // lower half of each 32 bits first. `out` has room for R * k floats.
  static void pack(const float* x, int64_t k, int64_t rows, float* out) {
    for (int64_t i = 0; i < k; i += 16) {
      const int64_t left = k - i < 16 ? k - i : 16;
      for (int64_t r = 0; r < rows; ++r) {
        const __mmask16 there = static_cast<__mmask16>((1u << left) - 1);
        const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(there, x + r * k + i));
        float pairs[8];
        __builtin_memcpy(pairs, &rounded, sizeof(pairs));
        for (int64_t j = 0; j < (left + 1) / 2; ++j) out[(i / 2 + j) * rows + r] = pairs[j];
      }
    }
  }

  template <int R, int NP>
  static void tile(const FloatingTile& t) {
    __m512 y[R][NP];
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) y[r][p] = _mm512_loadu_ps(t.sums[p] + r * kPanel);
    }
    const uint16_t* weights[NP];
    for (int p = 0; p < NP; ++p) weights[p] = static_cast<const uint16_t*>(t.weights[p]);
    const int64_t even = t.count & ~int64_t{1};
#pragma GCC unroll 2
    for (int64_t k = 0; k < even; k += 2) {
      if (R > 2 && k % kAheadStep == 0) prefetch_second(t.ahead + k / kAheadStep * kAheadBytes);
      step<R, NP>(t, weights, k, 0xffffffffu, y);
    }
    if (even < t.count) step<R, NP>(t, weights, even, 0xffffu, y);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) _mm512_storeu_ps(t.sums[p] + r * kPanel, y[r][p]);
    }
  }

 private:
  // Two k: `there` has a bit for each of their 2 x 16 weights.
  template <int R, int NP>
  __attribute__((always_inline)) static void step(const FloatingTile& t,
                                                  const uint16_t* const* weights, int64_t k,
                                                  __mmask32 there, __m512 (*y)[NP]) {
    __m512bh w[NP];
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
      const uint16_t* from = weights[p] + k * kPanel;
      if (R <= 2) prefetch(from + kPrefetchBytes / sizeof(uint16_t));
      w[p] = interleaved(_mm512_maskz_loadu_epi16(there, from));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      __m512bh a;
      if (R > 1 || t.packed) {
        a = everywhere(t.x + k / 2 * R + r);
      } else {
        float pair;
        const __m128 two = _mm_maskz_loadu_ps(there == 0xffffffffu ? 3 : 1, t.x + k);
        const __m128bh rounded = _mm_cvtneps_pbh(two);
        __builtin_memcpy(&pair, &rounded, sizeof(pair));
        a = everywhere(&pair);
      }
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) y[r][p] = _mm512_dpbf16_ps(y[r][p], w[p], a);
    }
  }

  // 16 weights of one k and 16 of the next as pairs.
  static __m512bh interleaved(__m512i w) {
    alignas(64) static const uint16_t kOrder[32] = {
        0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
        8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return (__m512bh)_mm512_permutexvar_epi16(_mm512_load_si512(kOrder), w);
  }

  static __m512bh everywhere(const float* pair) {
    int32_t bits;
    __builtin_memcpy(&bits, pair, sizeof(bits));
    return (__m512bh)_mm512_set1_epi32(bits);
  }
};

}  // namespace

#endif  // ORTLOOM_LINEAR_BRAIN_H_
