// Integer dot products of plain NEON: widening multiplies and pairwise additions. Included after
// vec_neon.h.
#ifndef ORTLOOM_DOT_NEON_H_
#define ORTLOOM_DOT_NEON_H_

#include "dot_arm64.h"

namespace {

constexpr int kQuantisedRows = 2;  // 2 rows x 4 vectors, two 16-bit sums each
constexpr int kFloatingRows = 6;   // 6 rows x 4 vectors: 24 sums
constexpr bool kPairsRows = false;
constexpr bool kDotsBrain = false;

// Two products are added in 16 bits, which 255 * 127 * 2 would leave; 128 * 127 * 2 fits.
constexpr int kByteOffset = 128;  // integer sums are those of code - kByteOffset

using ByteWeights = CentredCodes;
using SmallWeights = SignedCodes;
// Single products of the lower and the upper two lanes: a span has 8 steps, and 8 * 15 * 127 fits
// 16 bits, as do two of these.
struct SmallSum {
  int16x8_t low, high;
};

template <class Sum>
inline Sum begin_sum(int32_t start);
template <>
inline ByteSum begin_sum<ByteSum>(int32_t start) {
  return {vdupq_n_s32(start)};
}
template <>
inline SmallSum begin_sum<SmallSum>(int32_t) {
  return {vdupq_n_s16(0), vdupq_n_s16(0)};
}
inline void add_dot(ByteSum* sum, ByteWeights w, Quad a) {
  const int16x8_t low = vmull_s8(vget_low_s8(w.v), vget_low_s8(a.v));
  const int16x8_t high = vmull_high_s8(w.v, a.v);
  sum->v = vpadalq_s16(sum->v, vpaddq_s16(low, high));
}
inline void add_dot(SmallSum* sum, SmallWeights w, Quad a) {
  sum->low = vmlal_s8(sum->low, vget_low_s8(w.v), vget_low_s8(a.v));
  sum->high = vmlal_high_s8(sum->high, w.v, a.v);
}
inline IVec end_sum(ByteSum sum, int32_t) { return from_ints(sum.v); }
inline IVec end_sum(SmallSum sum, int32_t start) {
  return from_ints(vpadalq_s16(vdupq_n_s32(start), vpaddq_s16(sum.low, sum.high)));
}

}  // namespace

#endif  // ORTLOOM_DOT_NEON_H_
