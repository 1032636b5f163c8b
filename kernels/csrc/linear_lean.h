// Tiles of quantised weights for tiers with few vector registers (kLeanTiles): the fp32 sums stay in
// memory, and all registers go to the integer sums of a span, so that a tile has more rows. The
// chain of each element of y is that of linear_tiles.h. Included after it; internal linkage for the
// reason given in attention_body.h.
#ifndef ORTLOOM_LINEAR_LEAN_H_
#define ORTLOOM_LINEAR_LEAN_H_

#include "linear_tiles.h"

namespace {

template <int R, Codes C, int SPAN, Finish F>
void lean_tile(const QuantisedTile& t) {
  constexpr bool kSmall = C != Codes::kBytes;
  using Weights = typename std::conditional<kSmall, SmallWeights, ByteWeights>::type;
  using Sum = typename std::conditional<kSmall, SmallSum, ByteSum>::type;
  constexpr int kDots = C == Codes::kNibbles ? 2 : 1;
  constexpr int kSpansPerGroup = ortloom::kActivationGroup / SPAN;
  const uint8_t* codes[1] = {t.codes[0]};
  const int32_t* x = t.x + t.first_span * (SPAN / 4) * R;
  for (int64_t s = t.first_span; s < t.first_span + t.spans; ++s) {
    const int32_t* starts = t.starts + s * R;
    if (R > 2 && t.direct) {
      for (int i = 0; i < SPAN / 4 / kDots; ++i) {
        prefetch(codes[0] + i * 4 * kPanel + kPrefetchBytes);
      }
    } else if (R > 2) {
      prefetch_second(t.ahead + (s - t.first_span) * kAheadBytes);
    }
    SpanSums<Weights, Sum, R, 1, kDots, SPAN> sums;
    sums.begin(starts);
    sums.add(codes, x);
    x += SPAN / 4 * R;
    codes[0] += SPAN / 4 / kDots * 4 * kPanel;
    const int64_t block = (s >> t.scale_shift) * kPanel;
    const float* x_scales = t.x_scales + s / kSpansPerGroup * R;
    Vec scale[kPanelVectors], other[kPanelVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      scale[v] = load_scale(t.scales[0], t.half_scales, block + v * Vec::kLanes);
      if constexpr (F == Finish::kMins) {
        other[v] = load_scale(t.mins[0], t.half_scales, block + v * Vec::kLanes);
      }
      if constexpr (F == Finish::kShifted) other[v] = mul(scale[v], splat(-kShiftValue));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec x_scale = splat(x_scales[r]);
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        const IVec dot = sums.end(r, 0, v, starts[r]);
        Vec part;
        if constexpr (F == Finish::kMins) {
          part = fma(scale[v], to_float(dot), mul(other[v], splat(t.totals[s * R + r])));
        } else if constexpr (F == Finish::kShifted) {
          part = fma(scale[v], as_float(dot), other[v]);
        } else {
          part = mul(scale[v], to_float(dot));
        }
        float* y = t.sums[0] + r * kPanel + v * Vec::kLanes;
        store(y, fma(x_scale, part, load(y)));
      }
    }
  }
}

}  // namespace

#endif  // ORTLOOM_LINEAR_LEAN_H_
