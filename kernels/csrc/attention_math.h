// exp2 and tanh over Vec, and small integer helpers.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_MATH_H_
#define ORTLOOM_ATTENTION_MATH_H_

#include <cstddef>
#include <cstdint>

namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kMinusInfinity = -__builtin_inff();

// 2^x for x <= 0, relative error below 2e-7; exactly 1 at 0 and exactly 0 below -126.5. The
// polynomial is a minimax fit of 2^f on [-0.5, 0.5] with constant term 1.
inline Vec exp2_nonpositive(Vec x) {
  constexpr float kShift = 12582912.0f + 127.0f;  // 1.5 * 2^23 + exponent bias
  x = maximum(splat(-127.0f), x);
  const Vec shifted = add(x, splat(kShift));  // low mantissa bits: round(x) + 127
  const Vec f = sub(x, sub(shifted, splat(kShift)));
  Vec p = splat(1.5353362062e-04f);
  p = fma(p, f, splat(1.3398874557e-03f));
  p = fma(p, f, splat(9.6184373582e-03f));
  p = fma(p, f, splat(5.5503324708e-02f));
  p = fma(p, f, splat(2.4022647914e-01f));
  p = fma(p, f, splat(6.9314720286e-01f));
  p = fma(p, f, splat(1.0f));
  return mul(p, to_exponent(shifted));
}

inline float exp2_scalar(float x) {
  float lanes[Vec::kLanes];
  store(lanes, exp2_nonpositive(splat(x)));
  return lanes[0];
}

// tanh: odd polynomial below 0.625 (minimax fit of tanh(x)/x), (1 - e)/(1 + e), e = exp(-2|x|), above.
inline Vec tanh_all(Vec x) {
  const Vec z = mul(x, x);
  Vec p = splat(-5.7049850882e-03f);
  p = fma(p, z, splat(2.0639085614e-02f));
  p = fma(p, z, splat(-5.3739714611e-02f));
  p = fma(p, z, splat(1.3331442193e-01f));
  p = fma(p, z, splat(-3.3333281942e-01f));
  const Vec small = fma(mul(p, z), x, x);
  const Vec size = absolute(x);
  const Vec e = exp2_nonpositive(mul(size, splat(-2.0f * kLog2E)));
  const Vec large = div(sub(splat(1.0f), e), add(splat(1.0f), e));
  return select_less(size, splat(0.625f), small, with_sign(large, x));
}

inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline size_t padded(size_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

#endif  // ORTLOOM_ATTENTION_MATH_H_
