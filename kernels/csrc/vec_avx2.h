// 8 float lanes of AVX2 with FMA.
#ifndef ORTLOOM_VEC_AVX2_H_
#define ORTLOOM_VEC_AVX2_H_

#include <immintrin.h>

#include <cstddef>

namespace {

struct Vec {
  __m256 v;
  static constexpr int kLanes = 8;
};

constexpr int kRowsPerBlock = 6;  // register block: 6 rows x 2 vectors = 12 of 16 registers
constexpr int kVectorsPerBlock = 2;

inline Vec zero() { return {_mm256_setzero_ps()}; }
inline Vec splat(float x) { return {_mm256_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm256_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm256_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm256_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm256_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm256_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm256_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand wins where one is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm256_max_ps(a.v, b.v)}; }
inline Vec sign_mask() { return {_mm256_castsi256_ps(_mm256_set1_epi32(static_cast<int>(0x80000000u)))}; }
inline Vec absolute(Vec a) { return {_mm256_andnot_ps(sign_mask().v, a.v)}; }
// yes where a < b, else no
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ))};
}
// The magnitude of a with the sign of b.
inline Vec with_sign(Vec a, Vec b) {
  return {_mm256_or_ps(a.v, _mm256_and_ps(b.v, sign_mask().v))};
}
// Bits of a shifted left into the exponent field.
inline Vec to_exponent(Vec a) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.v), 23))};
}

inline float reduce_add(Vec a) {
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

inline float reduce_max(Vec a) {
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Column d of out (leading dimension ld) gets element d of each of the 16 rows. Half rows are
// gathered with memory-operand inserts, so that only the 4x4 steps use the shuffle port.
inline void transpose_group(const float* in, ptrdiff_t stride, int columns, float* out,
                            ptrdiff_t ld) {
  for (int half = 0; half < 16; half += 8) {
    const float* rows = in + half * stride;
    for (int c = 0; c < columns; c += 4) {
      __m256 pair[4];  // rows {j, j + 4} of columns c .. c + 3
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const float* p = rows + j * stride + c;
        pair[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)),
                                       _mm_loadu_ps(p + 4 * stride), 1);
      }
      const __m256 low01 = _mm256_unpacklo_ps(pair[0], pair[1]);
      const __m256 high01 = _mm256_unpackhi_ps(pair[0], pair[1]);
      const __m256 low23 = _mm256_unpacklo_ps(pair[2], pair[3]);
      const __m256 high23 = _mm256_unpackhi_ps(pair[2], pair[3]);
      float* o = out + c * ld + half;
      _mm256_storeu_ps(o, _mm256_shuffle_ps(low01, low23, 0x44));
      _mm256_storeu_ps(o + ld, _mm256_shuffle_ps(low01, low23, 0xee));
      _mm256_storeu_ps(o + 2 * ld, _mm256_shuffle_ps(high01, high23, 0x44));
      _mm256_storeu_ps(o + 3 * ld, _mm256_shuffle_ps(high01, high23, 0xee));
    }
  }
}

}  // namespace

#endif  // ORTLOOM_VEC_AVX2_H_
