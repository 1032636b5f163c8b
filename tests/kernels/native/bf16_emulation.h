// The AVX512_BF16 instructions that the library uses, emulated, so that the code around them runs
// on processors without them. Included ahead of a translation unit with -include.
#ifndef ORTLOOM_TESTS_BF16_EMULATION_H_
#define ORTLOOM_TESTS_BF16_EMULATION_H_

#include <immintrin.h>

namespace bf16_emulation {

// Nearest, ties to even; a NaN is made quiet, and subnormal numbers become zero.
static inline __m512i rounded(__m512 a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i out = _mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff));
  out = _mm512_mask_or_epi32(out, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), bits,
                             _mm512_set1_epi32(0x400000));
  const __m512i size = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
  out = _mm512_mask_and_epi32(out, _mm512_cmplt_epi32_mask(size, _mm512_set1_epi32(0x800000)),
                              bits, _mm512_set1_epi32(static_cast<int>(0x80000000u)));
  return _mm512_srli_epi32(out, 16);
}

static inline __m256bh cvtneps(__m512 a) { return (__m256bh)_mm512_cvtepi32_epi16(rounded(a)); }
static inline __m128bh cvtneps_128(__m128 a) {
  const __m512 wide = _mm512_zextps128_ps512(a);
  return (__m128bh)_mm256_castsi256_si128(_mm512_cvtepi32_epi16(rounded(wide)));
}

static inline __m512 upper(__m512i a) {
  return _mm512_castsi512_ps(_mm512_and_si512(a, _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
static inline __m512 lower(__m512i a) { return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)); }

// The upper products first, then the lower ones.
static inline __m512 dot(__m512 sum, __m512bh a, __m512bh b) {
  const __m512i x = (__m512i)a, y = (__m512i)b;
  sum = _mm512_add_ps(sum, _mm512_mul_ps(upper(x), upper(y)));
  return _mm512_add_ps(sum, _mm512_mul_ps(lower(x), lower(y)));
}

}  // namespace bf16_emulation

#define _mm512_dpbf16_ps bf16_emulation::dot
#define _mm512_cvtneps_pbh bf16_emulation::cvtneps
#define _mm_cvtneps_pbh bf16_emulation::cvtneps_128

#endif  // ORTLOOM_TESTS_BF16_EMULATION_H_
