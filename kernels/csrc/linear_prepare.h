// Activations as the tiles read them: rounded to int8, or in the order of a tile. Part of
// linear_body.h.
#ifndef ORTLOOM_LINEAR_PREPARE_H_
#define ORTLOOM_LINEAR_PREPARE_H_

#include "linear.h"
#include "linear_tiles.h"

namespace {

using ortloom::Format;
using ortloom::is_quantised;
using ortloom::kActivationGroup;
using ortloom::LinearCall;
using ortloom::PackedMatrix;
using ortloom::span_of;
using ortloom::tile_row;

Finish finish_of(const PackedMatrix& w) {
  if (w.mins != nullptr) return Finish::kMins;
  return kShiftsDots && w.half_scales ? Finish::kShifted : Finish::kPlain;
}

// How the integer sums of a matrix begin: at start - zero_point * (sum of the activations).
struct Beginning {
  int32_t start, zero_point;
};

Beginning beginning_of(const PackedMatrix& w) {
  // Integer sums are those of code - offset; what is missing to code - zero is in the start.
  int32_t zero_point = 0;
  if (w.mins == nullptr) zero_point = w.format == Format::kU8 ? 128 : 8;
  if (w.format == Format::kU8) zero_point -= kByteOffset;
  return {finish_of(w) == Finish::kShifted ? kShiftBits : 0, zero_point};
}

// Scales and factors of `count` groups of x at once, so that the divisions overlap. The factor is 0
// for a group that becomes all zero: it is (nearly) zero, or holds a value that is not finite; the
// latter's scale is NaN, and with it the row's results.
constexpr int kGroupsAtOnce = 16;
void measure_groups(const float* x, int count, float* scales, float* factors) {
  int32_t bits[kGroupsAtOnce] = {};
  for (int g = 0; g < count; ++g) bits[g] = largest_bits(x + g * kActivationGroup);
  float largest[kGroupsAtOnce];
  __builtin_memcpy(largest, bits, sizeof(largest));
  for (int g = 0; g < kGroupsAtOnce; g += Vec::kLanes) {
    const Vec top = load(largest + g);
    store(scales + g, div(top, splat(127.0f)));
    store(factors + g, div(splat(127.0f), top));
  }
  for (int g = 0; g < kGroupsAtOnce; ++g) {
    const bool finite = bits[g] < 0x7f800000;
    scales[g] = finite ? scales[g] : __builtin_nanf("");
    factors[g] = finite && factors[g] <= 3.402823466e38f ? factors[g] : 0.0f;
  }
}

// Rounds row r of a tile of R rows that begins at `row` (packed_contract.py).
void round_row(const LinearCall& call, const float* x, int64_t row, int64_t r, int64_t R,
               const Beginning& beginning) {
  const PackedMatrix& w = call.w;
  const ortloom::RoundedRows& out = call.rounded;
  const int64_t groups = w.k / kActivationGroup;
  const int64_t spans = kActivationGroup / span_of(w);
  // Places in the tile; kept here because stores of codes may change anything for the compiler.
  int32_t* code_at = out.codes + row * (w.k / 4) + r;
  float* scale_at = out.scales + row * groups + r;
  int32_t* start_at = out.starts + row * (groups * spans) + r;
  float* total_at = out.totals == nullptr ? nullptr : out.totals + row * (groups * spans) + r;
  float scales[kGroupsAtOnce], factors[kGroupsAtOnce];
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t g = group % kGroupsAtOnce;
    if (g == 0) {
      const int64_t left = groups - group;
      measure_groups(x + group * kActivationGroup,
                     static_cast<int>(left < kGroupsAtOnce ? left : kGroupsAtOnce), scales, factors);
    }
    int8_t codes[kActivationGroup] = {};
    int32_t sums[2] = {0, 0};
    if (factors[g] != 0.0f) round_values(x + group * kActivationGroup, factors[g], codes, sums);
    *scale_at = scales[g];
    scale_at += R;
    if (R == 1) {
      __builtin_memcpy(code_at, codes, sizeof(codes));
      code_at += kActivationGroup / 4;
    } else {
      for (int i = 0; i < kActivationGroup / 4; ++i) {
        __builtin_memcpy(code_at, codes + 4 * i, 4);
        code_at += R;
      }
    }
    if (spans == 1) sums[0] += sums[1];
    for (int64_t s = 0; s < spans; ++s) {
      *start_at = beginning.start - beginning.zero_point * sums[s];
      start_at += R;
      if (total_at != nullptr) {
        *total_at = static_cast<float>(sums[s]);
        total_at += R;
      }
    }
  }
}

// A cache line of each of `rows` rows, in the order of a tile: out [16][rows]. A tier that can do it
// in vectors has a function of this name, which is then preferred to the template.
constexpr int kLine = 16;
template <class Index>
void pack_line(const float* x, Index stride, Index rows, float* out) {
  for (Index r = 0; r < rows; ++r) {
    for (int i = 0; i < kLine; ++i) out[i * rows + r] = x[r * stride + i];
  }
}

void prepare(const LinearCall& call, int64_t first, int64_t last) {
  const PackedMatrix& w = call.w;
  const bool quantised = is_quantised(w.format);
  const Beginning beginning = quantised ? beginning_of(w) : Beginning{};
  for (int64_t tile = first; tile < last; ++tile) {
    const int64_t begin = tile_row(call, tile), R = tile_row(call, tile + 1) - begin;
    const float* x = call.x + begin * w.k;
    if (quantised) {
      for (int64_t r = 0; r < R; ++r) round_row(call, x + r * w.k, begin, r, R, beginning);
      continue;
    }
    if (kReadsRowsInPlace) continue;
    float* out = call.packed_x + begin * w.k;
    if (kDotsBrain && w.format == Format::kBf16) {
      BrainDots<kDotsBrain>::pack(x, w.k, R, out);
      continue;
    }
    int64_t k = 0;
    for (; k + kLine <= w.k; k += kLine) pack_line(x + k, w.k, R, out + k * R);
    for (int64_t r = 0; r < R; ++r) {
      for (int64_t i = k; i < w.k; ++i) out[i * R + r] = x[r * w.k + i];
    }
  }
}

}  // namespace

#endif  // ORTLOOM_LINEAR_PREPARE_H_
