// 4 float lanes of NEON, which every arm64 processor has, with fused multiply-adds.
#ifndef ORTLOOM_VEC_NEON_H_
#define ORTLOOM_VEC_NEON_H_

#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Vec {
  float32x4_t v;
  static constexpr int kLanes = 4;
};

constexpr int kRowsPerBlock = 6;  // register block: 6 rows x 4 vectors = 24 of 32 registers
constexpr int kVectorsPerBlock = 4;
constexpr int vectors_per_block(int) { return kVectorsPerBlock; }
constexpr int kTargetRows = 48;
constexpr bool kReadAhead = false;

inline Vec zero() { return {vdupq_n_f32(0.0f)}; }
inline Vec splat(float x) { return {vdupq_n_f32(x)}; }
inline Vec load(const float* p) { return {vld1q_f32(p)}; }
inline void store(float* p, Vec a) { vst1q_f32(p, a.v); }
inline Vec add(Vec a, Vec b) { return {vaddq_f32(a.v, b.v)}; }
inline Vec sub(Vec a, Vec b) { return {vsubq_f32(a.v, b.v)}; }
inline Vec mul(Vec a, Vec b) { return {vmulq_f32(a.v, b.v)}; }
inline Vec div(Vec a, Vec b) { return {vdivq_f32(a.v, b.v)}; }
inline Vec fma(Vec a, Vec b, Vec c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
// The second operand wins where one is NaN.
inline Vec maximum(Vec a, Vec b) { return {vbslq_f32(vcgtq_f32(a.v, b.v), a.v, b.v)}; }
inline Vec absolute(Vec a) { return {vabsq_f32(a.v)}; }
// yes where a < b, else no
inline Vec select_less(Vec a, Vec b, Vec yes, Vec no) {
  return {vbslq_f32(vcltq_f32(a.v, b.v), yes.v, no.v)};
}
// The magnitude of a with the sign of b.
inline Vec with_sign(Vec a, Vec b) {
  return {vbslq_f32(vdupq_n_u32(0x80000000u), b.v, a.v)};
}
// Bits of a shifted left into the exponent field.
inline Vec to_exponent(Vec a) {
  return {vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a.v), 23))};
}

// Halves first, as the other tiers do.
inline float reduce_add(Vec a) {
  const float32x2_t pair = vadd_f32(vget_low_f32(a.v), vget_high_f32(a.v));
  return vget_lane_f32(pair, 0) + vget_lane_f32(pair, 1);
}

inline float reduce_max(Vec a) {
  float lanes[4];
  vst1q_f32(lanes, a.v);
  const float x = lanes[0] > lanes[2] ? lanes[0] : lanes[2];
  const float y = lanes[1] > lanes[3] ? lanes[1] : lanes[3];
  return x > y ? x : y;
}

// kLanes elements widened exactly, from any address.
inline Vec load_f16(const uint16_t* p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))};
}
inline Vec load_bf16(const uint16_t* p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))};
}
inline Vec load_i8(const int8_t* p) {
  int32_t raw;
  __builtin_memcpy(&raw, p, sizeof(raw));
  const int8x8_t bytes = vreinterpret_s8_s32(vdup_n_s32(raw));
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))};
}

// kLanes elements rounded to the nearest, ties to even.
inline void store_f16(uint16_t* p, Vec a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(a.v)));
}
// A carry out of the mantissa rounds up; a NaN keeps its upper bits and is made quiet.
inline void store_bf16(uint16_t* p, Vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.v);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  vst1_u16(p, vshrn_n_u32(vbslq_u32(vceqq_f32(a.v, a.v), rounded, quiet), 16));
}
// For values within +-127.
inline void store_i8(int8_t* p, Vec a) {
  const int16x4_t shorts = vmovn_s32(vcvtnq_s32_f32(a.v));
  const int8x8_t bytes = vmovn_s16(vcombine_s16(shorts, shorts));
  const int32_t raw = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
  __builtin_memcpy(p, &raw, sizeof(raw));
}

// Column d of out (leading dimension ld) gets element d of each of the 16 rows.
inline void transpose_group(const float* in, ptrdiff_t stride, int columns, float* out,
                            ptrdiff_t ld) {
  for (int c = 0; c < columns; c += 4) {
    for (int j = 0; j < 16; j += 4) {
      const float* p = in + j * stride + c;
      const float32x4_t r0 = vld1q_f32(p), r1 = vld1q_f32(p + stride);
      const float32x4_t r2 = vld1q_f32(p + 2 * stride), r3 = vld1q_f32(p + 3 * stride);
      const float64x2_t low01 = vreinterpretq_f64_f32(vzip1q_f32(r0, r1));
      const float64x2_t high01 = vreinterpretq_f64_f32(vzip2q_f32(r0, r1));
      const float64x2_t low23 = vreinterpretq_f64_f32(vzip1q_f32(r2, r3));
      const float64x2_t high23 = vreinterpretq_f64_f32(vzip2q_f32(r2, r3));
      float* o = out + c * ld + j;
      vst1q_f32(o, vreinterpretq_f32_f64(vzip1q_f64(low01, low23)));
      vst1q_f32(o + ld, vreinterpretq_f32_f64(vzip2q_f64(low01, low23)));
      vst1q_f32(o + 2 * ld, vreinterpretq_f32_f64(vzip1q_f64(high01, high23)));
      vst1q_f32(o + 3 * ld, vreinterpretq_f32_f64(vzip2q_f64(high01, high23)));
    }
  }
}

}  // namespace

#endif  // ORTLOOM_VEC_NEON_H_
