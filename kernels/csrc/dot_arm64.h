// What the arm64 tiers share: loads of codes, the forms that weights and sums take in a register,
// and rounding of activations.
// Included after vec_neon.h by the dot_*.h of each tier.
#ifndef ORTLOOM_DOT_ARM64_H_
#define ORTLOOM_DOT_ARM64_H_

#include <arm_neon.h>

#include <cstdint>

namespace {

constexpr int kPanelsAtOnce = 1;
constexpr bool kShiftsDots = false;
constexpr bool kLeanTiles = false;
constexpr int kPrefetchBytes = 1024;

struct IVec {
  uint8x16_t v;
};

__attribute__((always_inline)) inline void prefetch(const void* p) { __builtin_prefetch(p); }
__attribute__((always_inline)) inline void prefetch_second(const void* p) {
  __builtin_prefetch(p, 0, 2);  // into the second cache
}
inline IVec load_codes(const uint8_t* p) { return {vld1q_u8(p)}; }
inline void store_codes(uint8_t* p, IVec a) { vst1q_u8(p, a.v); }
inline IVec low_nibbles(IVec a) { return {vandq_u8(a.v, vdupq_n_u8(15))}; }
inline IVec high_nibbles(IVec a) { return {vshrq_n_u8(a.v, 4)}; }
inline Vec to_float(IVec a) { return {vcvtq_f32_s32(vreinterpretq_s32_u8(a.v))}; }
inline Vec as_float(IVec a) { return {vreinterpretq_f32_u8(a.v)}; }
inline IVec from_ints(int32x4_t a) { return {vreinterpretq_u8_s32(a)}; }

// Four neighbouring codes of an activation row in every lane.
struct Quad {
  int8x16_t v;
  explicit Quad(int32_t codes) : v(vreinterpretq_s8_s32(vdupq_n_s32(codes))) {}
};

// Codes less 128, for products of two signed sides (kByteOffset is then 128).
struct CentredCodes {
  int8x16_t v;
  CentredCodes() = default;
  explicit CentredCodes(IVec a) : v(vreinterpretq_s8_u8(veorq_u8(a.v, vdupq_n_u8(0x80)))) {}
};
// Codes up to 127 as they are, for the same products.
struct SignedCodes {
  int8x16_t v;
  SignedCodes() = default;
  explicit SignedCodes(IVec a) : v(vreinterpretq_s8_u8(a.v)) {}
};
// Codes as they are, for products of an unsigned and a signed side.
struct UnsignedCodes {
  uint8x16_t v;
  UnsignedCodes() = default;
  explicit UnsignedCodes(IVec a) : v(a.v) {}
};
struct ByteSum {
  int32x4_t v;
};

// The largest magnitude of 32 values as bits: ordered like the values, and NaN above infinity.
inline int32_t largest_bits(const float* x) {
  const int32x4_t mask = vdupq_n_s32(0x7fffffff);
  int32x4_t top = vdupq_n_s32(0);
  for (int i = 0; i < 32; i += 4) {
    const int32x4_t bits = vreinterpretq_s32_f32(vld1q_f32(x + i));
    top = vmaxq_s32(top, vandq_s32(bits, mask));
  }
  return vmaxvq_s32(top);
}

// rint(x * factor) of 32 values, as bytes; `sums` gets the sum of each half.
inline void round_values(const float* x, float factor, int8_t* codes, int32_t* sums) {
  for (int h = 0; h < 2; ++h) {
    int32x4_t q[4];
    for (int i = 0; i < 4; ++i) {
      q[i] = vcvtnq_s32_f32(vmulq_f32(vld1q_f32(x + 16 * h + 4 * i), vdupq_n_f32(factor)));
    }
    sums[h] = vaddvq_s32(vaddq_s32(vaddq_s32(q[0], q[1]), vaddq_s32(q[2], q[3])));
    const int16x8_t low = vcombine_s16(vmovn_s32(q[0]), vmovn_s32(q[1]));
    const int16x8_t high = vcombine_s16(vmovn_s32(q[2]), vmovn_s32(q[3]));
    vst1q_s8(codes + 16 * h, vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
  }
}

}  // namespace

#endif  // ORTLOOM_DOT_ARM64_H_
