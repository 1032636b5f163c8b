// 4 float lanes of SSE2, which every x86-64 processor has. There is no fused multiply-add: it is two
// roundings here. With F16C (-mf16c) half precision is converted by the processor.
#ifndef ORTLOOM_VEC_SSE2_H_
#define ORTLOOM_VEC_SSE2_H_

#if defined(__F16C__)
#include <immintrin.h>
#else
#include <emmintrin.h>
#endif

#include <cstddef>
#include <cstdint>

namespace {

struct Vec {
  __m128 v;
  static constexpr int kLanes = 4;
};

constexpr int kRowsPerBlock = 4;  // register block: 4 rows x 2 vectors = 8 of 16 registers
constexpr int kVectorsPerBlock = 2;
constexpr int vectors_per_block(int) { return kVectorsPerBlock; }
constexpr int kTargetRows = 48;
constexpr bool kReadAhead = false;

inline Vec zero() { return {_mm_setzero_ps()}; }
inline Vec splat(float x) { return {_mm_set1_ps(x)}; }
inline Vec load(const float* p) { return {_mm_loadu_ps(p)}; }
inline void store(float* p, Vec a) { _mm_storeu_ps(p, a.v); }
inline Vec add(Vec a, Vec b) { return {_mm_add_ps(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {_mm_sub_ps(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {_mm_mul_ps(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {_mm_div_ps(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {_mm_add_ps(_mm_mul_ps(a.v, b.v), c.v)}; }
// The second operand wins where one is NaN.
inline Vec maximum(Vec a, Vec b) { return {_mm_max_ps(a.v, b.v)}; }
inline __m128 sign_mask() { return _mm_castsi128_ps(_mm_set1_epi32(static_cast<int>(0x80000000u))); }
inline Vec absolute(Vec a) { return {_mm_andnot_ps(sign_mask(), a.v)}; }
inline __m128i choose(__m128i mask, __m128i yes, __m128i no) {
  return _mm_or_si128(_mm_and_si128(mask, yes), _mm_andnot_si128(mask, no));
}
// yes where a < b, else no
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  const __m128 mask = _mm_cmplt_ps(a.v, b.v);
  return {_mm_or_ps(_mm_and_ps(mask, yes.v), _mm_andnot_ps(mask, no.v))};
}
// The magnitude of a with the sign of b.
inline Vec with_sign(Vec a, Vec b) { return {_mm_or_ps(a.v, _mm_and_ps(b.v, sign_mask()))}; }
// Bits of a shifted left into the exponent field.
inline Vec to_exponent(Vec a) {
  return {_mm_castsi128_ps(_mm_slli_epi32(_mm_castps_si128(a.v), 23))};
}

inline float reduce_add(Vec a) {
  const __m128 q = _mm_add_ps(a.v, _mm_movehl_ps(a.v, a.v));
  return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}

inline float reduce_max(Vec a) {
  const __m128 q = _mm_max_ps(a.v, _mm_movehl_ps(a.v, a.v));
  return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}

// The lower halves of four 32-bit lanes, stored. There is no unsigned pack in SSE2, but the signed
// one keeps what has been sign-extended.
inline void store_low_shorts(uint16_t* p, __m128i a) {
  a = _mm_srai_epi32(_mm_slli_epi32(a, 16), 16);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi32(a, a));
}
inline __m128i load_shorts(const uint16_t* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}

// kLanes elements widened exactly, from any address.
inline Vec load_f16(const uint16_t* p) {
#if defined(__F16C__)
  return {_mm_cvtph_ps(load_shorts(p))};
#else
  // The exponent is moved by a multiplication, which is exact and makes subnormals right as well;
  // infinity and NaN get the exponent of their kind.
  const __m128i raw = _mm_unpacklo_epi16(load_shorts(p), _mm_setzero_si128());
  const __m128i size = _mm_and_si128(raw, _mm_set1_epi32(0x7fff));
  const __m128 moved = _mm_mul_ps(_mm_castsi128_ps(_mm_slli_epi32(size, 13)),
                                  _mm_set1_ps(5.192296858534828e+33f));  // 2^112
  const __m128i special = _mm_and_si128(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x7bff)),
                                        _mm_set1_epi32(0x7f800000));
  const __m128i sign = _mm_slli_epi32(_mm_and_si128(raw, _mm_set1_epi32(0x8000)), 16);
  return {_mm_castsi128_ps(
      _mm_or_si128(_mm_or_si128(_mm_castps_si128(moved), special), sign))};
#endif
}
inline Vec load_bf16(const uint16_t* p) {
  return {_mm_castsi128_ps(_mm_unpacklo_epi16(_mm_setzero_si128(), load_shorts(p)))};
}
inline Vec load_i8(const int8_t* p) {
  int32_t raw;
  __builtin_memcpy(&raw, p, sizeof(raw));
  __m128i a = _mm_cvtsi32_si128(raw);
  a = _mm_unpacklo_epi8(a, a);
  return {_mm_cvtepi32_ps(_mm_srai_epi32(_mm_unpacklo_epi16(a, a), 24))};
}

// kLanes elements rounded to the nearest, ties to even.
inline void store_f16(uint16_t* p, Vec a) {
#if defined(__F16C__)
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p),
                   _mm_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
#else
  const __m128i bits = _mm_castps_si128(a.v);
  const __m128i size = _mm_and_si128(bits, _mm_set1_epi32(0x7fffffff));
  // Normal results: a bias that carries where the nearest is above, then the new exponent.
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(size, 13), _mm_set1_epi32(1));
  __m128i out = _mm_add_epi32(_mm_add_epi32(size, odd), _mm_set1_epi32(0xfff - (112 << 23)));
  out = _mm_srli_epi32(out, 13);
  // Subnormal ones: added to 0.5, whose last place is theirs.
  const __m128 half = _mm_set1_ps(0.5f);
  const __m128i tiny = _mm_sub_epi32(_mm_castps_si128(_mm_add_ps(_mm_castsi128_ps(size), half)),
                                     _mm_castps_si128(half));
  out = choose(_mm_cmpgt_epi32(_mm_set1_epi32(0x38800000), size), tiny, out);
  // From 65520 on infinity, and a NaN stays one.
  out = choose(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x477fefff)), _mm_set1_epi32(0x7c00), out);
  const __m128i payload = _mm_and_si128(_mm_srli_epi32(size, 13), _mm_set1_epi32(0x3ff));
  out = choose(_mm_cmpgt_epi32(size, _mm_set1_epi32(0x7f800000)),
               _mm_or_si128(payload, _mm_set1_epi32(0x7e00)), out);
  const __m128i sign = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(0x8000));
  store_low_shorts(p, _mm_or_si128(out, sign));
#endif
}
// A carry out of the mantissa rounds up; a NaN keeps its upper bits and is made quiet.
inline void store_bf16(uint16_t* p, Vec a) {
  const __m128i bits = _mm_castps_si128(a.v);
  const __m128i odd = _mm_and_si128(_mm_srli_epi32(bits, 16), _mm_set1_epi32(1));
  const __m128i rounded = _mm_add_epi32(_mm_add_epi32(bits, odd), _mm_set1_epi32(0x7fff));
  const __m128i quiet = _mm_or_si128(bits, _mm_set1_epi32(0x400000));
  const __m128i number = _mm_castps_si128(_mm_cmpord_ps(a.v, a.v));
  store_low_shorts(p, _mm_srli_epi32(choose(number, rounded, quiet), 16));
}
// For values within +-127.
inline void store_i8(int8_t* p, Vec a) {
  __m128i q = _mm_cvtps_epi32(a.v);
  q = _mm_packs_epi32(q, q);
  const int32_t raw = _mm_cvtsi128_si32(_mm_packs_epi16(q, q));
  __builtin_memcpy(p, &raw, sizeof(raw));
}

// Column d of out (leading dimension ld) gets element d of each of the 16 rows.
inline void transpose_group(const float* in, ptrdiff_t stride, int columns, float* out,
                            ptrdiff_t ld) {
  for (int c = 0; c < columns; c += 4) {
    for (int j = 0; j < 16; j += 4) {
      const float* p = in + j * stride + c;
      const __m128 r0 = _mm_loadu_ps(p), r1 = _mm_loadu_ps(p + stride);
      const __m128 r2 = _mm_loadu_ps(p + 2 * stride), r3 = _mm_loadu_ps(p + 3 * stride);
      const __m128 low01 = _mm_unpacklo_ps(r0, r1), high01 = _mm_unpackhi_ps(r0, r1);
      const __m128 low23 = _mm_unpacklo_ps(r2, r3), high23 = _mm_unpackhi_ps(r2, r3);
      float* o = out + c * ld + j;
      _mm_storeu_ps(o, _mm_movelh_ps(low01, low23));
      _mm_storeu_ps(o + ld, _mm_movehl_ps(low23, low01));
      _mm_storeu_ps(o + 2 * ld, _mm_movelh_ps(high01, high23));
      _mm_storeu_ps(o + 3 * ld, _mm_movehl_ps(high23, high01));
    }
  }
}

}  // namespace

#endif  // ORTLOOM_VEC_SSE2_H_
