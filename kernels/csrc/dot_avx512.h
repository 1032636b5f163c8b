// Integer dot products, half-precision loads and rounding of activations with AVX-512. Included
// after vec_avx512.h; with ORTLOOM_VNNI the dot product is one instruction, and with
// ORTLOOM_BF16 that of bfloat16 as well (linear_brain.h).
#ifndef ORTLOOM_DOT_AVX512_H_
#define ORTLOOM_DOT_AVX512_H_

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kFloatingRows = 12;  // 12 rows x 2 panels: 24 sums
constexpr int kPanelsAtOnce = 2;
constexpr bool kPairsRows = false;
constexpr bool kLeanTiles = false;
#if defined(ORTLOOM_BF16)
constexpr bool kDotsBrain = true;
#else
constexpr bool kDotsBrain = false;
#endif
constexpr int kPrefetchBytes = 2048;

struct IVec {
  __m512i v;
};

__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p); }
__attribute__((always_inline)) inline void prefetch_second(const void* p) {
  __builtin_prefetch(p, 0, 2);  // into the second cache
}
inline IVec load_codes(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
inline IVec low_nibbles(IVec a) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(15))}; }
inline IVec high_nibbles(IVec a) {
  return {_mm512_and_si512(_mm512_srli_epi16(a.v, 4), _mm512_set1_epi8(15))};
}
inline void store_codes(uint8_t* p, IVec a) { _mm512_storeu_si512(p, a.v); }
inline Vec to_float(IVec a) { return {_mm512_cvtepi32_ps(a.v)}; }
inline Vec as_float(IVec a) { return {_mm512_castsi512_ps(a.v)}; }
// Four neighbouring codes of an activation row in every lane.
struct Quad {
  __m512i v;
  explicit Quad(int32_t codes) : v(_mm512_set1_epi32(codes)) {}
};

#if defined(ORTLOOM_VNNI)

constexpr int kQuantisedRows = 7;  // 7 rows x 2 panels: 14 integer and 14 fp32 sums
constexpr bool kShiftsDots = true;
constexpr int kByteOffset = 0;  // integer sums are those of code - kByteOffset

struct ByteWeights {
  __m512i v;
  ByteWeights() = default;
  explicit ByteWeights(IVec a) : v(a.v) {}
};
using SmallWeights = ByteWeights;
struct ByteSum {
  __m512i v;
};
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {_mm512_set1_epi32(start)};
}
inline void add_dot(ByteSum* sum, ByteWeights w, Quad a) {
  sum->v = _mm512_dpbusd_epi32(sum->v, w.v, a.v);
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }

#else

// maddubs adds two products in 16 bits, which 255 * 127 * 2 would leave. So the sign of
// code - 128 moves to the activation: 128 * 127 * 2 fits.
constexpr int kQuantisedRows = 6;
constexpr bool kShiftsDots = false;
constexpr int kByteOffset = 128;

struct ByteWeights {
  __m512i magnitude;
  __mmask64 negative;
  ByteWeights() = default;
  explicit ByteWeights(IVec a) {
    const __m512i centred = _mm512_xor_si512(a.v, _mm512_set1_epi8(static_cast<char>(0x80)));
    magnitude = _mm512_abs_epi8(centred);
    negative = _mm512_movepi8_mask(centred);
  }
};
struct SmallWeights {
  __m512i v;
  SmallWeights() = default;
  explicit SmallWeights(IVec a) : v(a.v) {}
};
struct ByteSum {
  __m512i v;
};
// Pairs in 16 bits: a span has 8 steps, and 8 * 2 * 15 * 127 fits.
struct SmallSum {
  __m512i v;
};

template <class Sum>
inline Sum begin_sum(int32_t start);
template <>
inline ByteSum begin_sum<ByteSum>(int32_t start) {
  return {_mm512_set1_epi32(start)};
}
template <>
inline SmallSum begin_sum<SmallSum>(int32_t) {
  return {_mm512_setzero_si512()};
}
inline void add_dot(ByteSum* sum, const ByteWeights& w, Quad a) {
  const __m512i x = _mm512_mask_sub_epi8(a.v, w.negative, _mm512_setzero_si512(), a.v);
  const __m512i pairs = _mm512_maddubs_epi16(w.magnitude, x);
  sum->v = _mm512_add_epi32(sum->v, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
inline void add_dot(SmallSum* sum, SmallWeights w, Quad a) {
  sum->v = _mm512_add_epi16(sum->v, _mm512_maddubs_epi16(w.v, a.v));
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }
inline IVec end_sum(SmallSum sum, int32_t start) {
  return {_mm512_add_epi32(_mm512_madd_epi16(sum.v, _mm512_set1_epi16(1)),
                           _mm512_set1_epi32(start))};
}

#endif

// The largest magnitude of 32 values as bits: ordered like the values, and NaN above infinity.
inline int32_t largest_bits(const float* x) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  return _mm512_reduce_max_epi32(
      _mm512_max_epi32(_mm512_and_si512(_mm512_loadu_si512(x), mask),
                       _mm512_and_si512(_mm512_loadu_si512(x + 16), mask)));
}

// rint(x * factor) of 32 values, as bytes; `sums` gets the sum of each half.
inline void round_values(const float* x, float factor, int8_t* codes, int32_t* sums) {
  for (int h = 0; h < 2; ++h) {
    const __m512i q =
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * h), _mm512_set1_ps(factor)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * h), _mm512_cvtepi32_epi8(q));
    sums[h] = _mm512_reduce_add_epi32(q);
  }
}

}  // namespace

#endif  // ORTLOOM_DOT_AVX512_H_
