// Integer dot products, half-precision loads and rounding of activations with AVX2 and F16C.
// Included after vec_avx2.h; with ORTLOOM_VNNI the dot product is one instruction.
#ifndef ORTLOOM_DOT_AVX2_H_
#define ORTLOOM_DOT_AVX2_H_

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int kFloatingRows = 6;   // 6 rows x 2 vectors: 12 sums
constexpr int kPanelsAtOnce = 1;
constexpr bool kPairsRows = false;
constexpr bool kDotsBrain = false;
constexpr int kPrefetchBytes = 2048;

struct IVec {
  __m256i v;
};

__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p); }
__attribute__((always_inline)) inline void prefetch_second(const void* p) {
  __builtin_prefetch(p, 0, 2);  // into the second cache
}
inline IVec load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))};
}
inline void store_codes(uint8_t* p, IVec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.v);
}
inline IVec low_nibbles(IVec a) { return {_mm256_and_si256(a.v, _mm256_set1_epi8(15))}; }
inline IVec high_nibbles(IVec a) {
  return {_mm256_and_si256(_mm256_srli_epi16(a.v, 4), _mm256_set1_epi8(15))};
}
inline Vec to_float(IVec a) { return {_mm256_cvtepi32_ps(a.v)}; }
// *sum += a * b in the register where the sum is: left to itself, GCC moves sums about and runs out
// of registers in tiles that need all of them.
inline void add_product(Vec* sum, Vec a, Vec b) {
  __asm__("vfmadd231ps %2, %1, %0" : "+x"(sum->v) : "x"(a.v), "x"(b.v));
}
inline Vec as_float(IVec a) { return {_mm256_castsi256_ps(a.v)}; }
// Four neighbouring codes of an activation row in every lane.
struct Quad {
  __m256i v;
  explicit Quad(int32_t codes) : v(_mm256_set1_epi32(codes)) {}
};

#if defined(ORTLOOM_VNNI)

constexpr int kQuantisedRows = 3;  // 3 rows x 2 vectors: 6 integer and 6 fp32 sums
constexpr bool kLeanTiles = false;
constexpr bool kShiftsDots = true;
constexpr int kByteOffset = 0;  // integer sums are those of code - kByteOffset

struct ByteWeights {
  __m256i v;
  ByteWeights() = default;
  explicit ByteWeights(IVec a) : v(a.v) {}
};
using SmallWeights = ByteWeights;
struct ByteSum {
  __m256i v;
};
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {_mm256_set1_epi32(start)};
}
inline void add_dot(ByteSum* sum, ByteWeights w, Quad a) {
#if defined(__AVXVNNI__)
  sum->v = _mm256_dpbusd_avx_epi32(sum->v, w.v, a.v);
#else  // the same instruction in the form of AVX-512
  sum->v = _mm256_dpbusd_epi32(sum->v, w.v, a.v);
#endif
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }

#else

// maddubs adds two products in 16 bits, which 255 * 127 * 2 would leave. So the sign of
// code - 128 moves to the activation: 128 * 127 * 2 fits.
constexpr int kQuantisedRows = 4;  // 4 rows x 2 vectors: 8 integer sums; those in fp32 in memory
constexpr bool kLeanTiles = true;
constexpr bool kShiftsDots = true;
constexpr int kByteOffset = 128;  // integer sums are those of code - kByteOffset

struct ByteWeights {
  __m256i centred, magnitude;
  ByteWeights() = default;
  explicit ByteWeights(IVec a)
      : centred(_mm256_xor_si256(a.v, _mm256_set1_epi8(static_cast<char>(0x80)))),
        magnitude(_mm256_abs_epi8(centred)) {}
};
struct SmallWeights {
  __m256i v;
  SmallWeights() = default;
  explicit SmallWeights(IVec a) : v(a.v) {}
};
struct ByteSum {
  __m256i v;
};
// Pairs in 16 bits: a span has 8 steps, and 8 * 2 * 15 * 127 fits.
struct SmallSum {
  __m256i v;
};

// Sums are added to step by step: a compiler that adds up the products of a span as a tree of its
// own holds more of them than there are registers.
inline void keep_order(__m256i* sum) { __asm__("" : "+x"(*sum)); }

template <class Sum>
inline Sum begin_sum(int32_t start);
template <>
inline ByteSum begin_sum<ByteSum>(int32_t start) {
  return {_mm256_set1_epi32(start)};
}
template <>
inline SmallSum begin_sum<SmallSum>(int32_t) {
  return {_mm256_setzero_si256()};
}
inline void add_dot(ByteSum* sum, const ByteWeights& w, Quad a) {
  const __m256i pairs = _mm256_maddubs_epi16(w.magnitude, _mm256_sign_epi8(a.v, w.centred));
  sum->v = _mm256_add_epi32(sum->v, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  keep_order(&sum->v);
}
inline void add_dot(SmallSum* sum, SmallWeights w, Quad a) {
  sum->v = _mm256_add_epi16(sum->v, _mm256_maddubs_epi16(w.v, a.v));
  keep_order(&sum->v);
}
inline IVec end_sum(ByteSum sum, int32_t) { return {sum.v}; }
inline IVec end_sum(SmallSum sum, int32_t start) {
  return {_mm256_add_epi32(_mm256_madd_epi16(sum.v, _mm256_set1_epi16(1)),
                           _mm256_set1_epi32(start))};
}

#endif

// The largest magnitude of 32 values as bits: ordered like the values, and NaN above infinity.
inline int32_t largest_bits(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int i = 0; i < 32; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    top = _mm256_max_epi32(top, _mm256_and_si256(bits, mask));
  }
  __m128i q = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  q = _mm_max_epi32(q, _mm_shuffle_epi32(q, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

// rint(x * factor) of 32 values, as bytes; `sums` gets the sum of each half.
inline void round_values(const float* x, float factor, int8_t* codes, int32_t* sums) {
  __m256i q[4];
  for (int i = 0; i < 4; ++i) {
    q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), _mm256_set1_ps(factor)));
  }
  // The packs work within halves; the permutation puts the quarters in order.
  const __m256i bytes =
      _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  const __m256i ordered =
      _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), ordered);
  __m256i sum = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_set1_epi8(1), ordered),
                                  _mm256_set1_epi16(1));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
  sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
  sums[0] = _mm_cvtsi128_si32(_mm256_castsi256_si128(sum));
  sums[1] = _mm_cvtsi128_si32(_mm256_extracti128_si256(sum, 1));
}

// pack_line() of linear_prepare.h: four rows at a time, then two, then one.
inline void pack_line(const float* x, int64_t stride, int64_t rows, float* out) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
    const float* from = x + r * stride;
    for (int i = 0; i < 16; i += 4) {
      __m128 a = _mm_loadu_ps(from + i), b = _mm_loadu_ps(from + stride + i);
      __m128 c = _mm_loadu_ps(from + 2 * stride + i), d = _mm_loadu_ps(from + 3 * stride + i);
      _MM_TRANSPOSE4_PS(a, b, c, d);
      float* to = out + i * rows + r;
      _mm_storeu_ps(to, a);
      _mm_storeu_ps(to + rows, b);
      _mm_storeu_ps(to + 2 * rows, c);
      _mm_storeu_ps(to + 3 * rows, d);
    }
  }
  for (; r + 2 <= rows; r += 2) {
    const float* from = x + r * stride;
    for (int i = 0; i < 16; i += 4) {
      const __m128 a = _mm_loadu_ps(from + i), b = _mm_loadu_ps(from + stride + i);
      const __m128 low = _mm_unpacklo_ps(a, b), high = _mm_unpackhi_ps(a, b);
      float* to = out + i * rows + r;
      _mm_storel_pi(reinterpret_cast<__m64*>(to), low);
      _mm_storeh_pi(reinterpret_cast<__m64*>(to + rows), low);
      _mm_storel_pi(reinterpret_cast<__m64*>(to + 2 * rows), high);
      _mm_storeh_pi(reinterpret_cast<__m64*>(to + 3 * rows), high);
    }
  }
  if (r < rows) {
    for (int i = 0; i < 16; ++i) out[i * rows + r] = x[r * stride + i];
  }
}

}  // namespace

#endif  // ORTLOOM_DOT_AVX2_H_
