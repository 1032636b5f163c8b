// Integer dot products, half-precision loads and rounding of activations in the compiler's vector
// types. Included after vec_portable.h.
#ifndef ORTLOOM_DOT_PORTABLE_H_
#define ORTLOOM_DOT_PORTABLE_H_

#include <cstdint>

#if defined(__SSE2__)  // baseline of x86-64
#include <emmintrin.h>
#endif

namespace {

typedef int16_t Short8 __attribute__((vector_size(16)));
typedef uint16_t UShort8 __attribute__((vector_size(16)));

constexpr int kQuantisedRows = 2;
constexpr int kFloatingRows = 2;  // 2 rows x 4 vectors: 8 sums
constexpr int kPanelsAtOnce = 1;
constexpr bool kShiftsDots = false;
constexpr bool kPairsRows = false;
constexpr bool kLeanTiles = false;
constexpr bool kDotsBrain = false;
constexpr int kPrefetchBytes = 1024;

struct IVec {
  Int4 v;
};

__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p); }
__attribute__((always_inline)) inline void prefetch_second(const void* p) {
  __builtin_prefetch(p, 0, 2);  // into the second cache
}
inline IVec load_codes(const uint8_t* p) {
  IVec a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
inline void store_codes(uint8_t* p, IVec a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }
inline IVec low_nibbles(IVec a) { return {a.v & 0x0f0f0f0f}; }
inline IVec high_nibbles(IVec a) { return {a.v >> 4 & 0x0f0f0f0f}; }
inline Vec to_float(IVec a) { return {__builtin_convertvector(a.v, Float4)}; }
inline Vec as_float(IVec a) { return {(Float4)a.v}; }

// Four neighbouring codes of an activation row in every lane, as 16-bit values: the first and
// third, and the second and fourth.
struct Quad {
  Short8 even, odd;
  explicit Quad(int32_t codes) {
    const Short8 all = (Short8)Int4{codes, codes, codes, codes};
    even = (Short8)((UShort8)all << 8) >> 8;
    odd = all >> 8;
  }
};

constexpr int kByteOffset = 0;  // integer sums are those of code - kByteOffset

struct ByteWeights {
  Short8 even, odd;
  ByteWeights() = default;
  explicit ByteWeights(IVec a)
      : even((Short8)a.v & 0xff), odd((Short8)((UShort8)a.v >> 8)) {}
};
using SmallWeights = ByteWeights;
struct ByteSum {
  Int4 v;
};
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {Int4{start, start, start, start}};
}
inline Int4 add_pairs(Short8 a, Short8 b) {
#if defined(__SSE2__)
  return (Int4)_mm_madd_epi16((__m128i)a, (__m128i)b);
#else
  const Int4 product = (Int4)(a * b);  // 255 * 127 fits 16 bits
  return (Int4)((product << 16) >> 16) + (product >> 16);
#endif
}
inline void add_dot(ByteSum* sum, const ByteWeights& w, const Quad& a) {
  sum->v += add_pairs(w.even, a.even) + add_pairs(w.odd, a.odd);
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }

// The largest magnitude of 32 values as bits: ordered like the values, and NaN above infinity.
inline int32_t largest_bits(const float* x) {
  int32_t top = 0;
  for (int i = 0; i < 32; ++i) {
    int32_t bits;
    __builtin_memcpy(&bits, x + i, sizeof(bits));
    bits &= 0x7fffffff;
    top = bits > top ? bits : top;
  }
  return top;
}

// rint(x * factor) of 32 values, as bytes; `sums` gets the sum of each half. Adding and taking off
// 1.5 * 2^23 rounds to even.
inline void round_values(const float* x, float factor, int8_t* codes, int32_t* sums) {
  constexpr float kShift = 12582912.0f;
  for (int h = 0; h < 2; ++h) {
    int32_t sum = 0;
    for (int i = 16 * h; i < 16 * h + 16; ++i) {
      const float shifted = x[i] * factor + kShift;
      const int32_t q = static_cast<int32_t>(shifted - kShift);
      codes[i] = static_cast<int8_t>(q);
      sum += q;
    }
    sums[h] = sum;
  }
}

}  // namespace

#endif  // ORTLOOM_DOT_PORTABLE_H_
