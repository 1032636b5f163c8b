// Integer dot products with SDOT, the dot product extension of arm64. Included after vec_neon.h.
#ifndef ORTLOOM_DOT_DOTPROD_H_
#define ORTLOOM_DOT_DOTPROD_H_

#include "dot_arm64.h"

namespace {

constexpr int kQuantisedRows = 3;  // 3 rows x 4 vectors: 12 integer and 12 fp32 sums
constexpr int kFloatingRows = 6;   // 6 rows x 4 vectors: 24 sums
constexpr bool kPairsRows = false;
constexpr bool kDotsBrain = false;

// Both sides of SDOT are signed.
constexpr int kByteOffset = 128;  // integer sums are those of code - kByteOffset

using ByteWeights = CentredCodes;
using SmallWeights = SignedCodes;
using SmallSum = ByteSum;

template <class Sum>
inline Sum begin_sum(int32_t start) {
  return {vdupq_n_s32(start)};
}
template <class Weights>
inline void add_dot(ByteSum* sum, Weights w, Quad a) {
  sum->v = vdotq_s32(sum->v, w.v, a.v);
}
inline IVec end_sum(ByteSum sum, int32_t) { return from_ints(sum.v); }

}  // namespace

#endif  // ORTLOOM_DOT_DOTPROD_H_
