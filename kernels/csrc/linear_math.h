// Activations over Vec. Included after a vec_*.h; internal linkage for the reason given in
// attention_body.h. Every step is a fixed sequence of operations, so a value depends on its input
// alone. Coefficients are weighted minimax fits, rounded to fp32.
#ifndef ORTLOOM_LINEAR_MATH_H_
#define ORTLOOM_LINEAR_MATH_H_

namespace {

// e^x for x <= 0; exactly 0 below -87.7. exp(x) = 2^n exp(r), with n ln 2 taken off in
// two parts of which the first is exact (Cody and Waite 1980).
inline Vec exp_nonpositive(Vec x) {
  constexpr float kShift = 12582912.0f + 127.0f;  // 1.5 * 2^23 + exponent bias
  x = maximum(splat(-88.0f), x);
  const Vec shifted = add(mul(x, splat(1.44269504088896340736f)), splat(kShift));
  const Vec n = sub(splat(kShift), shifted);  // minus the rounded exponent
  Vec r = fma(n, splat(0.693359375f), x);
  r = fma(n, splat(-2.12194440e-4f), r);
  Vec p = splat(1.3814431149e-03f);
  p = fma(p, r, splat(8.3687966689e-03f));
  p = fma(p, r, splat(4.1668396443e-02f));
  p = fma(p, r, splat(1.6666519642e-01f));
  p = fma(p, r, splat(4.9999994040e-01f));
  p = fma(mul(p, r), r, r);
  p = add(p, splat(1.0f));
  return mul(p, to_exponent(shifted));
}

// 1 / (1 + e^-x), with no cancellation on either side of 0.
inline Vec sigmoid(Vec x) {
  const Vec e = exp_nonpositive(sub(splat(0.0f), absolute(x)));
  const Vec top = select_less(x, splat(0.0f), e, splat(1.0f));
  return div(top, add(splat(1.0f), e));
}

inline Vec silu(Vec x) { return mul(x, sigmoid(x)); }

// x (1 + tanh(u)) / 2 is x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
inline Vec gelu_tanh(Vec x) {
  const Vec inner = fma(mul(mul(x, x), x), splat(0.044715f), x);
  return mul(x, sigmoid(mul(inner, splat(1.5957691216057308f))));
}

// x (1 + erf(x / sqrt 2)) / 2. With a = |x| / sqrt 2: erf(a) / a is a polynomial in a^2 below 1;
// erfc(a) e^(a^2) one in t = 1 / (1 + 0.4 a) above (the shape of Abramowitz and Stegun 7.1.26).
inline Vec gelu(Vec x) {
  const Vec a = mul(absolute(x), splat(0.70710678118654752440f));
  const Vec z = mul(a, a);
  Vec p = splat(7.8538578236e-05f);
  p = fma(p, z, splat(-8.0101925414e-04f));
  p = fma(p, z, splat(5.1883277483e-03f));
  p = fma(p, z, splat(-2.6853810996e-02f));
  p = fma(p, z, splat(1.1283585429e-01f));
  p = fma(p, z, splat(-3.7612625957e-01f));
  p = fma(p, z, splat(1.1283791065e+00f));
  const Vec near = sub(splat(1.0f), mul(p, a));
  const Vec t = div(splat(1.0f), fma(a, splat(0.4f), splat(1.0f)));
  Vec q = splat(2.3890197277e-02f);
  q = fma(q, t, splat(-2.0480553806e-01f));
  q = fma(q, t, splat(3.8342383504e-01f));
  q = fma(q, t, splat(-1.1440532655e-01f));
  q = fma(q, t, splat(2.7835744619e-01f));
  q = fma(q, t, splat(1.7720369995e-01f));
  q = fma(q, t, splat(2.3101024330e-01f));
  q = fma(q, t, splat(2.2514891624e-01f));
  q = fma(q, t, splat(2.2433569029e-05f));
  const Vec far = mul(q, exp_nonpositive(sub(splat(0.0f), z)));
  const Vec half_tail = mul(splat(0.5f), select_less(a, splat(1.0f), near, far));
  // x Phi(x): Phi is the tail itself left of 0 and one minus it to the right.
  const Vec phi = select_less(x, splat(0.0f), half_tail, sub(splat(1.0f), half_tail));
  return mul(x, phi);
}

}  // namespace

#endif  // ORTLOOM_LINEAR_MATH_H_
