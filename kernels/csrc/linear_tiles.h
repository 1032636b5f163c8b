// Register tiles of the packed linear: R rows of x against NP panels of W.
// Included after a vec_*.h and a dot_*.h; internal linkage for the reason given in attention_body.h.
//
// One fp32 chain for each element of y, whatever the tile: over the spans of K in ascending order
// in quantised formats, over k in floating ones. Sums live in `sums` between calls, so that K may be
// cut anywhere (at span borders) without a change of a bit.
#ifndef ORTLOOM_LINEAR_TILES_H_
#define ORTLOOM_LINEAR_TILES_H_

#include <type_traits>

#include "linear.h"

namespace {

using ortloom::kPanel;
using ortloom::kSlots;

constexpr int kPanelVectors = kPanel / Vec::kLanes;
constexpr int kAheadBytes = 64, kAheadStep = 4;
// One or two rows read each weight once, from memory. Asking early makes a step 8 to 11 % shorter
// (Zen 3, two threads; nibbles, bytes, bfloat16), but for fp32, whose stream the processor sees by
// itself, 8 % longer on AVX2. The functions that ask must be inlined by force: GCC takes a function
// that only prefetches for one without an effect, and drops the call.
constexpr int kCodeBytes = Vec::kLanes * 4;  // codes in a vector of weights

// How the codes lie: bytes, nibbles, or nibbles already spread to bytes (so below 16).
enum class Codes { kBytes, kNibbles, kSpread };

// How an integer sum becomes scale * dot (+ min * total):
//   kPlain   converted, then multiplied.
//   kMins    the same with a minimum.
//   kShifted fp16 scales without minima, where the tier asks for it (kShiftsDots): the sum begins at
//            the bits of 1.5 * 2^23, so that its bits are the fp32 number 1.5 * 2^23 + dot, and
//            fma(scale, that, -scale * 1.5 * 2^23) saves the conversion. scale * 1.5 * 2^23 is exact
//            (11 bits times 2), so the one rounding is that of scale * dot.
enum class Finish { kPlain, kMins, kShifted };
constexpr int32_t kShiftBits = 0x4b400000;
constexpr float kShiftValue = 12582912.0f;

struct QuantisedTile {
  const uint8_t* codes[kSlots];   // of the panel, at the first span
  const uint8_t* scales[kSlots];  // of the panel, all of K; fp16 or fp32
  const uint8_t* mins[kSlots];
  bool half_scales;
  bool direct;  // this tile reads the weights from memory
  int64_t first_span, spans;
  int scale_shift;  // a scale is for 2^scale_shift spans
  // Of the tile of rows, all of K.
  const int32_t* x;
  const float* x_scales;
  const int32_t* starts;
  const float* totals;
  float* sums[kSlots];   // [R][16]
  const uint8_t* ahead;  // kAheadBytes a span to ask for
};

inline Vec load_scale(const uint8_t* base, bool half, int64_t index) {
  return half ? load_f16(reinterpret_cast<const uint16_t*>(base) + index)
              : load(reinterpret_cast<const float*>(base) + index);
}

// The integer sums of one span: R rows against NP panels, codes in bytes (DOTS = 1) or
// nibbles (2). Tiers that take rows in pairs (kPairsRows) have a specialisation in linear_pairs.h.
template <class Weights, class Sum, int R, int NP, int DOTS, int SPAN,
          bool PAIRED = kPairsRows && (R > 1)>
struct SpanSums {
  static constexpr int kSteps = SPAN / 4 / DOTS;
  Sum sum[R][NP][kPanelVectors];

  __attribute__((always_inline)) void begin(const int32_t* starts) {
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) sum[r][p][v] = begin_sum<Sum>(starts[r]);
      }
    }
  }

  __attribute__((always_inline)) void add(const uint8_t* const* codes, const int32_t* x) {
#pragma GCC unroll 8
    for (int i = 0; i < kSteps; ++i) {
      Weights w[DOTS][NP][kPanelVectors];
#pragma GCC unroll 2
      for (int p = 0; p < NP; ++p) {
        if (R <= 2) {
          prefetch(codes[p] + i * 4 * kPanel + kPrefetchBytes);
        }
#pragma GCC unroll 4
        for (int v = 0; v < kPanelVectors; ++v) {
          const IVec raw = load_codes(codes[p] + i * 4 * kPanel + v * kCodeBytes);
          if constexpr (DOTS == 2) {
            w[0][p][v] = Weights(low_nibbles(raw));
            w[DOTS - 1][p][v] = Weights(high_nibbles(raw));
          } else {
            w[0][p][v] = Weights(raw);
          }
        }
      }
#pragma GCC unroll 2
      for (int d = 0; d < DOTS; ++d) {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const Quad a(x[(i * DOTS + d) * R + r]);
#pragma GCC unroll 2
          for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
            for (int v = 0; v < kPanelVectors; ++v) add_dot(&sum[r][p][v], w[d][p][v], a);
          }
        }
      }
    }
  }

  __attribute__((always_inline)) IVec end(int r, int p, int v, int32_t start) const {
    return end_sum(sum[r][p][v], start);
  }
};

template <int R, int NP, Codes C, int SPAN, Finish F>
void quantised_tile(const QuantisedTile& t) {
  constexpr bool kSmall = C != Codes::kBytes;
  using Weights = typename std::conditional<kSmall, SmallWeights, ByteWeights>::type;
  using Sum = typename std::conditional<kSmall, SmallSum, ByteSum>::type;
  constexpr int kDots = C == Codes::kNibbles ? 2 : 1;
  constexpr int kSpansPerGroup = ortloom::kActivationGroup / SPAN;
  Vec y[R][NP][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        y[r][p][v] = load(t.sums[p] + r * kPanel + v * Vec::kLanes);
      }
    }
  }
  const uint8_t* codes[NP];
  for (int p = 0; p < NP; ++p) codes[p] = t.codes[p];
  const int32_t* x = t.x + t.first_span * (SPAN / 4) * R;
  for (int64_t s = t.first_span; s < t.first_span + t.spans; ++s) {
    const int32_t* starts = t.starts + s * R;
    if (R > 2) prefetch_second(t.ahead + (s - t.first_span) * kAheadBytes);
    SpanSums<Weights, Sum, R, NP, kDots, SPAN> sums;
    sums.begin(starts);
    sums.add(codes, x);
    x += SPAN / 4 * R;
    const int64_t block = (s >> t.scale_shift) * kPanel;
    const float* x_scales = t.x_scales + s / kSpansPerGroup * R;
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
      codes[p] += SPAN / 4 / kDots * 4 * kPanel;
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        const Vec scale = load_scale(t.scales[p], t.half_scales, block + v * Vec::kLanes);
        Vec other = zero();
        if constexpr (F == Finish::kMins) {
          other = load_scale(t.mins[p], t.half_scales, block + v * Vec::kLanes);
        }
        if constexpr (F == Finish::kShifted) other = mul(scale, splat(-kShiftValue));
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
          const IVec dot = sums.end(r, p, v, starts[r]);
          Vec part;
          if constexpr (F == Finish::kMins) {
            part = fma(scale, to_float(dot), mul(other, splat(t.totals[s * R + r])));
          } else if constexpr (F == Finish::kShifted) {
            part = fma(scale, as_float(dot), other);
          } else {
            part = mul(scale, to_float(dot));
          }
          y[r][p][v] = fma(splat(x_scales[r]), part, y[r][p][v]);
        }
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        store(t.sums[p] + r * kPanel + v * Vec::kLanes, y[r][p][v]);
      }
    }
  }
}

struct FloatingTile {
  const void* weights[kSlots];  // of the panel, at the first k
  int64_t count;
  const float* x;       // of the tile of rows, at the first k
  int64_t stride;       // values from a row of x to the next, where they are read in place
  bool packed;          // prepare() has put x in order
  bool direct;          // this tile reads the weights from memory
  float* sums[kSlots];   // [R][16]
  const uint8_t* ahead;  // ahead_lines * kAheadBytes every kAheadStep to ask for
  int ahead_lines;
};

// bfloat16 weights by dot products of pairs, in tiers that have them (kDotsBrain; linear_brain.h).
template <bool THERE>
struct BrainDots {
  static void pack(const float*, int64_t, int64_t, float*) {}
  template <int R, int NP>
  static void tile(const FloatingTile&) {}
};

struct Single {
  using Type = float;
  static constexpr bool kDots = false;
  static Vec widen(const float* p) { return load(p); }
};
struct Half {
  using Type = uint16_t;
  static constexpr bool kDots = false;
  static Vec widen(const uint16_t* p) { return load_f16(p); }
};
struct Brain {
  using Type = uint16_t;
  static constexpr bool kDots = kDotsBrain;
  static Vec widen(const uint16_t* p) { return load_bf16(p); }
};

// Whether tiles read the rows of x where they are, or in the order in which prepare() has put them.
// With few registers the rows of a tile are few, so that reading them side by side costs nothing,
// and the turn over all of x is saved.
constexpr bool kReadsRowsInPlace = kLeanTiles;

// The rows of x of a tile. Every value read is a constant away from one of few pointers, so that a
// step of K costs no address arithmetic: it would take as many slots as the multiplications leave.
template <int R, bool IN_PLACE = kReadsRowsInPlace>
class XRows {  // in the order in which prepare() has put them
 public:
  XRows(const float* x, int64_t) : x_(x) {}
  Vec value(int r, int k) const { return splat(x_[k * R + r]); }
  void advance(int k) { x_ += k * R; }

 private:
  const float* x_;
};
template <int R>
class XRows<R, true> {  // a pointer for each three rows
 public:
  XRows(const float* x, int64_t stride) : stride_(stride) {
    for (int i = 0; i < kPointers; ++i) x_[i] = x + 3 * i * stride;
  }
  Vec value(int r, int k) const { return splat(x_[r / 3][r % 3 * stride_ + k]); }
  void advance(int k) {
    for (int i = 0; i < kPointers; ++i) x_[i] += k;
  }

 private:
  static constexpr int kPointers = (R + 2) / 3;
  const float* x_[kPointers];
  int64_t stride_;
};

// *sum += a * b. A tier may have a function of this name, which is then preferred.
template <class V>
__attribute__((always_inline)) inline void add_product(V* sum, V a, V b) {
  *sum = fma(a, b, *sum);
}

// y += the outer product of R values of x and NP panels of weights, `k` steps on.
template <int R, int NP, class F>
__attribute__((always_inline)) inline void add_outer(const typename F::Type* const* weights, int k,
                                                     const XRows<R>& x,
                                                     Vec (*y)[NP][kPanelVectors]) {
  Vec w[NP][kPanelVectors];
#pragma GCC unroll 2
  for (int p = 0; p < NP; ++p) {
    if (R <= 2 && (sizeof(typename F::Type) < 4 || !kLeanTiles)) {
      prefetch(weights[p] + k * kPanel + kPrefetchBytes / sizeof(typename F::Type));
    }
#pragma GCC unroll 4
    for (int v = 0; v < kPanelVectors; ++v) {
      w[p][v] = F::widen(weights[p] + k * kPanel + v * Vec::kLanes);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
    const Vec a = x.value(r, k);
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) add_product(&y[r][p][v], a, w[p][v]);
    }
  }
}

template <int R, int NP, class F>
void floating_tile(const FloatingTile& t) {
  using Type = typename F::Type;
  Vec y[R][NP][kPanelVectors];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        y[r][p][v] = load(t.sums[p] + r * kPanel + v * Vec::kLanes);
      }
    }
  }
  const Type* weights[NP];
  for (int p = 0; p < NP; ++p) weights[p] = static_cast<const Type*>(t.weights[p]);
  XRows<R> x(t.x, t.stride);
  const uint8_t* ahead = t.ahead;
  const bool direct = t.direct;
  const int lines = t.ahead_lines;
  int64_t left = t.count;
  for (; left >= kAheadStep; left -= kAheadStep) {
    if (kLeanTiles && R > 2 && direct) {
#pragma GCC unroll 4
      for (int i = 0; i < kAheadStep * kPanel * static_cast<int>(sizeof(Type)); i += 64) {
        prefetch(reinterpret_cast<const uint8_t*>(weights[0]) + i + kPrefetchBytes);
      }
    } else if (R > 2) {
      for (int i = 0; i < lines; ++i, ahead += kAheadBytes) prefetch_second(ahead);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kAheadStep; ++i) {
      add_outer<R, NP, F>(weights, i, x, y);
      // A compiler that loads for the next step already holds more than there are registers.
      if (kLeanTiles) __asm__ volatile("" ::: "memory");
    }
    for (int p = 0; p < NP; ++p) weights[p] += kAheadStep * kPanel;
    x.advance(kAheadStep);
  }
  for (; left > 0; --left) {
    add_outer<R, NP, F>(weights, 0, x, y);
    for (int p = 0; p < NP; ++p) weights[p] += kPanel;
    x.advance(1);
  }
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (int p = 0; p < NP; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) {
        store(t.sums[p] + r * kPanel + v * Vec::kLanes, y[r][p][v]);
      }
    }
  }
}

}  // namespace

#endif  // ORTLOOM_LINEAR_TILES_H_
