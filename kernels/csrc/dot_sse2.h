// Integer dot products and rounding of activations with SSE2. Included after vec_sse2.h.
#ifndef ORTLOOM_DOT_SSE2_H_
#define ORTLOOM_DOT_SSE2_H_

#include <cstdint>

namespace {

constexpr int kQuantisedRows = 2;
constexpr int kFloatingRows = 2;  // 2 rows x 4 vectors: 8 sums
constexpr int kPanelsAtOnce = 1;
constexpr bool kShiftsDots = false;
constexpr bool kPairsRows = false;
constexpr bool kLeanTiles = false;
constexpr bool kDotsBrain = false;
constexpr int kPrefetchBytes = 1024;

struct IVec {
  __m128i v;
};

__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p); }
__attribute__((always_inline)) inline void prefetch_second(const void* p) {
  __builtin_prefetch(p, 0, 2);  // into the second cache
}
inline IVec load_codes(const uint8_t* p) {
  return {_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))};
}
inline void store_codes(uint8_t* p, IVec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), a.v);
}
inline IVec low_nibbles(IVec a) { return {_mm_and_si128(a.v, _mm_set1_epi8(15))}; }
inline IVec high_nibbles(IVec a) {
  return {_mm_and_si128(_mm_srli_epi16(a.v, 4), _mm_set1_epi8(15))};
}
inline Vec to_float(IVec a) { return {_mm_cvtepi32_ps(a.v)}; }
inline Vec as_float(IVec a) { return {_mm_castsi128_ps(a.v)}; }

// Four neighbouring codes of an activation row in every lane, as 16-bit values: the first and
// third, and the second and fourth.
struct Quad {
  __m128i even, odd;
  explicit Quad(int32_t codes) {
    const __m128i all = _mm_set1_epi32(codes);
    even = _mm_srai_epi16(_mm_slli_epi16(all, 8), 8);
    odd = _mm_srai_epi16(all, 8);
  }
};

constexpr int kByteOffset = 0;  // integer sums are those of code - kByteOffset

struct ByteWeights {
  __m128i even, odd;
  ByteWeights() = default;
  explicit ByteWeights(IVec a)
      : even(_mm_and_si128(a.v, _mm_set1_epi16(0xff))), odd(_mm_srli_epi16(a.v, 8)) {}
};
using SmallWeights = ByteWeights;
struct ByteSum {
  __m128i v;
};
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {_mm_set1_epi32(start)};
}
inline void add_dot(ByteSum* sum, const ByteWeights& w, const Quad& a) {
  sum->v = _mm_add_epi32(sum->v, _mm_add_epi32(_mm_madd_epi16(w.even, a.even),
                                               _mm_madd_epi16(w.odd, a.odd)));
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }

// The largest magnitude of 32 values as bits: ordered like the values, and NaN above infinity.
inline int32_t largest_bits(const float* x) {
  const __m128i mask = _mm_set1_epi32(0x7fffffff);
  __m128i top = _mm_setzero_si128();
  for (int i = 0; i < 32; i += 4) {
    const __m128i bits =
        _mm_and_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i)), mask);
    top = choose(_mm_cmpgt_epi32(bits, top), bits, top);
  }
  __m128i other = _mm_shuffle_epi32(top, 0x4e);
  top = choose(_mm_cmpgt_epi32(other, top), other, top);
  other = _mm_shuffle_epi32(top, 0xb1);
  return _mm_cvtsi128_si32(choose(_mm_cmpgt_epi32(other, top), other, top));
}

// rint(x * factor) of 32 values, as bytes; `sums` gets the sum of each half.
inline void round_values(const float* x, float factor, int8_t* codes, int32_t* sums) {
  for (int h = 0; h < 2; ++h) {
    __m128i q[4];
    for (int i = 0; i < 4; ++i) {
      q[i] = _mm_cvtps_epi32(_mm_mul_ps(_mm_loadu_ps(x + 16 * h + 4 * i), _mm_set1_ps(factor)));
    }
    __m128i sum = _mm_add_epi32(_mm_add_epi32(q[0], q[1]), _mm_add_epi32(q[2], q[3]));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    sums[h] = _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16 * h),
                     _mm_packs_epi16(_mm_packs_epi32(q[0], q[1]), _mm_packs_epi32(q[2], q[3])));
  }
}

}  // namespace

#endif  // ORTLOOM_DOT_SSE2_H_
