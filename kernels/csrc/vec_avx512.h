// 16 float lanes of AVX-512.
#ifndef ORTLOOM_VEC_AVX512_H_
#define ORTLOOM_VEC_AVX512_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Vec {
  __m512 v;
  static constexpr int kLanes = 16;
};

constexpr int kRowsPerBlock = 6;   // register block: 6 rows x 4 vectors = 24 of 32 registers
constexpr int kVectorsPerBlock = 4;
constexpr int vectors_per_block(int) { return kVectorsPerBlock; }
constexpr int kTargetRows = 48;
constexpr bool kReadAhead = false;

inline Vec zero() { return {_mm512_setzero_ps()}; }
inline Vec splat(float x) { return {_mm512_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm512_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm512_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm512_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// The second operand wins where one is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm512_max_ps(a.v, b.v)}; }
inline Vec absolute(Vec a) { return {_mm512_abs_ps(a.v)}; }
// yes where a < b, else no
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), no.v, yes.v)};
}
// The magnitude of a with the sign of b.
inline Vec with_sign(Vec a, Vec b) {
  const __m512i sign = _mm512_set1_epi32(static_cast<int>(0x80000000u));
  return {_mm512_castsi512_ps(_mm512_or_si512(
      _mm512_castps_si512(a.v), _mm512_and_si512(_mm512_castps_si512(b.v), sign)))};
}
// Bits of a shifted left into the exponent field.
inline Vec to_exponent(Vec a) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.v), 23))};
}

// Pool elements, widened exactly; what is stored is rounded to nearest even.
inline Vec load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
inline Vec load_bf16(const uint16_t* p) {
  const __m256i raw = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16))};
}
inline Vec load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(
      _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
inline void store_f16(uint16_t* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, 0));
}
inline void store_bf16(uint16_t* p, Vec a) {
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  // A NaN stays one: rounding could carry it into infinity.
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(near, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}
inline void store_i8(int8_t* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(a.v)));
}

inline float reduce_add(Vec a) {
  __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_add_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

inline float reduce_max(Vec a) {
  __m256 h = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
  q = _mm_max_ps(q, _mm_movehl_ps(q, q));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

// Column d of out (leading dimension ld) gets element d of each of the 16 rows. Quarter rows are
// gathered with memory-operand inserts, so that only the 4x4 steps use the shuffle port.
inline void transpose_group(const float* in, ptrdiff_t stride, int columns, float* out,
                            ptrdiff_t ld) {
  for (int c = 0; c < columns; c += 16) {
    __m512 quad[16];  // quad[4*i + j]: rows {j, j+4, j+8, j+12} of columns c + 4*i .. + 3
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const float* p = in + j * stride + c + 4 * i;
        __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(p));
        x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 4 * stride), 1);
        x = _mm512_insertf32x4(x, _mm_loadu_ps(p + 8 * stride), 2);
        quad[4 * i + j] = _mm512_insertf32x4(x, _mm_loadu_ps(p + 12 * stride), 3);
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512 low01 = _mm512_unpacklo_ps(quad[4 * i], quad[4 * i + 1]);
      const __m512 high01 = _mm512_unpackhi_ps(quad[4 * i], quad[4 * i + 1]);
      const __m512 low23 = _mm512_unpacklo_ps(quad[4 * i + 2], quad[4 * i + 3]);
      const __m512 high23 = _mm512_unpackhi_ps(quad[4 * i + 2], quad[4 * i + 3]);
      float* o = out + (c + 4 * i) * ld;
      _mm512_storeu_ps(o, _mm512_shuffle_ps(low01, low23, 0x44));
      _mm512_storeu_ps(o + ld, _mm512_shuffle_ps(low01, low23, 0xee));
      _mm512_storeu_ps(o + 2 * ld, _mm512_shuffle_ps(high01, high23, 0x44));
      _mm512_storeu_ps(o + 3 * ld, _mm512_shuffle_ps(high01, high23, 0xee));
    }
  }
}

}  // namespace

#endif  // ORTLOOM_VEC_AVX512_H_
