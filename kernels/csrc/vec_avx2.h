// 8 float lanes of AVX2 with FMA.
#ifndef ORTLOOM_VEC_AVX2_H_
#define ORTLOOM_VEC_AVX2_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Vec {
  __m256 v;
  static constexpr int kLanes = 8;
};

constexpr int kRowsPerBlock = 6;  // register block: 6 rows x 2 vectors = 12 of 16 registers
constexpr int kVectorsPerBlock = 2;
// Few rows take more vectors: a sum waits 4 cycles for its last addition while two are begun in each,
// so that fewer than 8 sums leave the multipliers idle.
constexpr int vectors_per_block(int rows) { return rows == 1 ? 8 : rows <= 3 ? 4 : 2; }
// Rows of a task: the more there are, the less it costs to widen and to transpose what they share.
constexpr int kTargetRows = 96;
// The keys and values of the next tile are fetched while those of the present one are computed with.
constexpr bool kReadAhead = true;

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

// Pool elements, widened exactly; what is stored is rounded to nearest even.
inline Vec load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
inline Vec load_bf16(const uint16_t* p) {
  const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16))};
}
inline Vec load_i8(const int8_t* p) {
  return {_mm256_cvtepi32_ps(
      _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_f16(uint16_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.v, 0));
}
inline void store_bf16(uint16_t* p, Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  // A NaN stays one: rounding could carry it into infinity.
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i high = _mm256_srli_epi32(_mm256_blendv_epi8(near, quiet, nan), 16);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packus_epi32(_mm256_castsi256_si128(high),
                                    _mm256_extracti128_si256(high, 1)));
}
inline void store_i8(int8_t* p, Vec a) {
  const __m256i codes = _mm256_cvtps_epi32(a.v);
  const __m128i shorts =
      _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(shorts, shorts));
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
