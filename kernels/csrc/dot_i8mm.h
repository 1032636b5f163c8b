// Integer dot products with the int8 matrix extension of arm64: USDOT for one row, USMMLA, a
// product of 2 x 8 with 8 x 2, for two and more (SpanSums below). Included after vec_neon.h.
#ifndef ORTLOOM_DOT_I8MM_H_
#define ORTLOOM_DOT_I8MM_H_

#include "dot_arm64.h"

namespace {

constexpr int kQuantisedRows = 4;  // 2 pairs of rows x 8 pairs of columns: 16 integer sums
constexpr int kFloatingRows = 6;   // 6 rows x 4 vectors: 24 sums
constexpr bool kPairsRows = true;
constexpr bool kDotsBrain = false;

constexpr int kByteOffset = 0;  // integer sums are those of code - kByteOffset

using ByteWeights = UnsignedCodes;
using SmallWeights = UnsignedCodes;
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {vdupq_n_s32(start)};
}
inline void add_dot(ByteSum* sum, ByteWeights w, Quad a) {
  sum->v = vusdotq_s32(sum->v, w.v, a.v);
}
inline IVec end_sum(ByteSum sum, int32_t) { return from_ints(sum.v); }

}  // namespace

#endif  // ORTLOOM_DOT_I8MM_H_
