// 4 float lanes in the compiler's own vector type: SSE2 on x86-64, NEON on arm64. Multiply and add
// stay two roundings (the files are built with -ffp-contract=off), since baseline x86-64 has no FMA.
#ifndef ORTLOOM_VEC_PORTABLE_H_
#define ORTLOOM_VEC_PORTABLE_H_

#include <cstddef>
#include <cstdint>

namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

// One element order, two compilers.
#if defined(__clang__)
#define ORTLOOM_SHUFFLE(a, b, i, j, k, l) __builtin_shufflevector(a, b, i, j, k, l)
#else
#define ORTLOOM_SHUFFLE(a, b, i, j, k, l) __builtin_shuffle(a, b, Int4{i, j, k, l})
#endif

struct Vec {
  Float4 v;
  static constexpr int kLanes = 4;
};

constexpr int kRowsPerBlock = 4;
constexpr int kVectorsPerBlock = 2;
constexpr int vectors_per_block(int) { return kVectorsPerBlock; }
constexpr int kTargetRows = 48;
constexpr bool kReadAhead = false;

inline Vec splat(float x) { return {Float4{x, x, x, x}}; }
inline Vec zero() { return splat(0.0f); }
inline Vec load(const float* p) {
  Vec a;
  __builtin_memcpy(&a.v, p, sizeof(a.v));
  return a;
}
inline void store(float* p, Vec a) { __builtin_memcpy(p, &a.v, sizeof(a.v)); }
inline Vec add(Vec a, Vec b) { return {a.v + b.v}; }
inline Vec sub(Vec a, Vec b) { return {a.v - b.v}; }
inline Vec mul(Vec a, Vec b) { return {a.v * b.v}; }
inline Vec div(Vec a, Vec b) { return {a.v / b.v}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {a.v * b.v + c.v}; }
inline Vec blend(Int4 mask, Vec yes, Vec no) {
  return {(Float4)(((Int4)yes.v & mask) | ((Int4)no.v & ~mask))};
}
// The second operand wins where one is NaN.
inline Vec maximum(Vec a, Vec b) { return blend(a.v > b.v, a, b); }
inline Vec absolute(Vec a) { return {(Float4)((Int4)a.v & 0x7fffffff)}; }
// yes where a < b, else no
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) { return blend(a.v < b.v, yes, no); }
// The magnitude of a with the sign of b.
inline Vec with_sign(Vec a, Vec b) {
  return {(Float4)((Int4)a.v | ((Int4)b.v & ~0x7fffffff))};
}
// Bits of a shifted left into the exponent field.
inline Vec to_exponent(Vec a) { return {(Float4)((Int4)a.v << 23)}; }

// Pool elements, widened exactly; what is stored is rounded to nearest even.
inline Int4 load_shorts(const uint16_t* p) { return Int4{p[0], p[1], p[2], p[3]}; }
// The exponent is moved by a multiplication, which is exact and makes subnormals right as well;
// infinity and NaN get the exponent of their kind.
inline Vec load_f16(const uint16_t* p) {
  const Int4 raw = load_shorts(p);
  const Float4 moved = (Float4)((raw & 0x7fff) << 13) * 5.192296858534828e+33f;  // 2^112
  const Int4 special = moved >= 65536.0f;
  const Int4 bits = (Int4)moved | (special & 0x7f800000) | (raw & 0x8000) << 16;
  return {(Float4)bits};
}
inline Vec load_bf16(const uint16_t* p) { return {(Float4)(load_shorts(p) << 16)}; }
inline Vec load_i8(const int8_t* p) {
  return {__builtin_convertvector((Int4{p[0], p[1], p[2], p[3]}), Float4)};
}
inline void store_shorts(uint16_t* p, Int4 a) {
  for (int i = 0; i < 4; ++i) p[i] = static_cast<uint16_t>(a[i]);
}
// Adding 2^23 times the last kept place rounds a subnormal; a normal number is rounded on its bits.
inline void store_f16(uint16_t* p, Vec a) {
  const Int4 bits = (Int4)a.v, size = bits & 0x7fffffff;
  const Int4 normal = (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13;
  const Int4 small = (Int4)((Float4)size + 0.5f) - 0x3f000000;
  const Int4 is_small = size < 0x38800000, is_nan = size > 0x7f800000;
  Int4 half = (small & is_small) | (normal & ~is_small);
  const Int4 over = half > 0x7c00;
  half = (over & 0x7c00) | (half & ~over);
  const Int4 quiet = 0x7e00 | (size >> 13 & 0x3ff);
  half = (quiet & is_nan) | (half & ~is_nan);
  store_shorts(p, half | (bits >> 16 & 0x8000));
}
inline void store_bf16(uint16_t* p, Vec a) {
  const Int4 bits = (Int4)a.v;
  const Int4 is_nan = (bits & 0x7fffffff) > 0x7f800000;
  // The sum may pass the largest integer: unsigned, where that is defined.
  typedef uint32_t UInt4 __attribute__((vector_size(16)));
  const Int4 near = (Int4)((UInt4)bits + (UInt4)(0x7fff + (bits >> 16 & 1)));
  const Int4 kept = ((bits | 0x400000) & is_nan) | (near & ~is_nan);
  store_shorts(p, kept >> 16 & 0xffff);
}
// Adding and taking off 1.5 * 2^23 rounds to an integer; the low bits of the sum are that integer.
inline void store_i8(int8_t* p, Vec a) {
  const Int4 codes = (Int4)(a.v + 12582912.0f) - 0x4b400000;
  for (int i = 0; i < 4; ++i) p[i] = static_cast<int8_t>(codes[i]);
}

inline float reduce_add(Vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }

inline float reduce_max(Vec a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}

// Column d of out (leading dimension ld) gets element d of each of the 16 rows.
inline void transpose_group(const float* in, ptrdiff_t stride, int columns, float* out,
                            ptrdiff_t ld) {
  for (int c = 0; c < columns; c += 4) {
    for (int j = 0; j < 16; j += 4) {
      const float* p = in + j * stride + c;
      const Float4 r0 = load(p).v, r1 = load(p + stride).v;
      const Float4 r2 = load(p + 2 * stride).v, r3 = load(p + 3 * stride).v;
      const Float4 low01 = ORTLOOM_SHUFFLE(r0, r1, 0, 4, 1, 5);
      const Float4 high01 = ORTLOOM_SHUFFLE(r0, r1, 2, 6, 3, 7);
      const Float4 low23 = ORTLOOM_SHUFFLE(r2, r3, 0, 4, 1, 5);
      const Float4 high23 = ORTLOOM_SHUFFLE(r2, r3, 2, 6, 3, 7);
      float* o = out + c * ld + j;
      store(o, {ORTLOOM_SHUFFLE(low01, low23, 0, 1, 4, 5)});
      store(o + ld, {ORTLOOM_SHUFFLE(low01, low23, 2, 3, 6, 7)});
      store(o + 2 * ld, {ORTLOOM_SHUFFLE(high01, high23, 0, 1, 4, 5)});
      store(o + 3 * ld, {ORTLOOM_SHUFFLE(high01, high23, 2, 3, 6, 7)});
    }
  }
}

}  // namespace

#endif  // ORTLOOM_VEC_PORTABLE_H_
