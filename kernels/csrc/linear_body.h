// Packed linear, embedding gather and RMS norm over a Vec type; each tier's translation unit
// includes this after its vec_*.h and dot_*.h. Internal linkage and no inline code of the C++
// library, for the reason given in attention_body.h.
#ifndef ORTLOOM_LINEAR_BODY_H_
#define ORTLOOM_LINEAR_BODY_H_

#include "linear.h"
#include "linear_lean.h"
#include "linear_math.h"
#include "linear_prepare.h"
#include "linear_tiles.h"

namespace {

using ortloom::Activation;
using ortloom::EmbeddingCall;
using ortloom::LinearKernels;
using ortloom::NormCall;

// K is cut so that the block of weights that all tiles go over stays in the nearest cache.
constexpr int64_t kQuantisedBlock = 1024;
constexpr int64_t kFloatingBlock = 320;
constexpr int64_t kBlockGrain = 32;  // a block is a multiple of it, and so whole groups of codes
// Tiles from which it pays to widen a block of weights once, before they go over it.
constexpr int64_t kWidenTiles = 3;
// Tiles from which fp32 weights are read block by block: while one tile reads a block from memory,
// the others would wait for it, so that all of them ask for the next one.
constexpr int64_t kBlockTiles = 2;
constexpr int64_t kHeldGroups = 6;
constexpr int64_t kMostLines = 4;  // that a tile asks for in kAheadStep steps
constexpr int64_t kRowsAhead = 8;  // of y, that are asked for before they are written

// ---- choice of a tile -------------------------------------------------------------------------

using QuantisedFunction = void (*)(const QuantisedTile&);
using FloatingFunction = void (*)(const FloatingTile&);

template <int R, Codes C, int SPAN, Finish F>
QuantisedFunction quantised_of_rows(int64_t rows) {
  if (rows == R) {
    if constexpr (kLeanTiles && R > 2) return lean_tile<R, C, SPAN, F>;
    return quantised_tile<R, kPanelsAtOnce, C, SPAN, F>;
  }
  if constexpr (R > 1) return quantised_of_rows<R - 1, C, SPAN, F>(rows);
  return nullptr;
}

template <Codes C, int SPAN>
QuantisedFunction quantised_of_span(int64_t rows, Finish finish) {
  constexpr int R = kQuantisedRows;
  if (finish == Finish::kMins) return quantised_of_rows<R, C, SPAN, Finish::kMins>(rows);
  if constexpr (kShiftsDots) {
    if (finish == Finish::kShifted) return quantised_of_rows<R, C, SPAN, Finish::kShifted>(rows);
  }
  return quantised_of_rows<R, C, SPAN, Finish::kPlain>(rows);
}

template <Codes C>
QuantisedFunction quantised_of_codes(int64_t rows, int64_t span, Finish finish) {
  return span == 16 ? quantised_of_span<C, 16>(rows, finish)
                    : quantised_of_span<C, 32>(rows, finish);
}

QuantisedFunction quantised_function(const PackedMatrix& w, bool spread, int64_t rows) {
  const int64_t span = span_of(w);
  const Finish finish = finish_of(w);
  if (w.format == Format::kU8) return quantised_of_codes<Codes::kBytes>(rows, span, finish);
  return spread ? quantised_of_codes<Codes::kSpread>(rows, span, finish)
                : quantised_of_codes<Codes::kNibbles>(rows, span, finish);
}

template <int R, class F>
FloatingFunction floating_of_rows(int64_t rows) {
  if (rows == R) {
    if constexpr (F::kDots) return BrainDots<F::kDots>::template tile<R, kPanelsAtOnce>;
    return floating_tile<R, kPanelsAtOnce, F>;
  }
  if constexpr (R > 1) return floating_of_rows<R - 1, F>(rows);
  return nullptr;
}

FloatingFunction floating_function(Format format, int64_t rows) {
  if (format == Format::kF16) return floating_of_rows<kFloatingRows, Half>(rows);
  if (format == Format::kBf16) return floating_of_rows<kFloatingRows, Brain>(rows);
  return floating_of_rows<kFloatingRows, Single>(rows);
}

// ---- a group of panels ------------------------------------------------------------------------

struct TaskRows {
  int64_t tile, tile_end;  // tiles
  int64_t first, count;    // rows
};

struct Group {
  int64_t panels[kSlots];
  int count;  // panels that are wanted; the last group of an odd number has its panel twice
};

Group group_at(const LinearCall& call, int64_t g) {
  const int64_t all = ortloom::panels_of(call.w);
  if (call.activation != Activation::kNone) return {{g, g + all / 2}, kSlots};
  const int64_t first = g * kSlots;
  if (first + 1 == all) return {{first, first}, 1};
  return {{first, first + 1}, kSlots};
}

// Bytes of a panel from one k to another.
int64_t weight_bytes(const PackedMatrix& w, int64_t k) {
  switch (w.format) {
    case Format::kU4: return k * kPanel / 2;
    case Format::kU8: return k * kPanel;
    case Format::kF32: return k * kPanel * 4;
    default: return k * kPanel * 2;
  }
}

const uint8_t* weights_at(const PackedMatrix& w, int64_t panel, int64_t k) {
  return static_cast<const uint8_t*>(w.weight) + weight_bytes(w, panel * w.k + k);
}

// The weights that come after a block. Each tile asks for a few of their cache lines, so that they
// come from far memory while it multiplies.
class Ahead {
 public:
  Ahead() = default;  // nothing
  Ahead(const PackedMatrix& w, const Group& next, int64_t k, int64_t count)
      : bytes_(weight_bytes(w, count)) {
    for (int s = 0; s < kSlots; ++s) from_[s] = weights_at(w, next.panels[s], k);
  }
  int64_t bytes() const { return from_[0] == nullptr ? 0 : kSlots * bytes_; }
  // Where a tile that takes `bytes` of them begins, or `otherwise` if there are none left.
  const uint8_t* take(int64_t bytes, const void* otherwise) {
    while (slot_ < kSlots && offset_ + bytes > bytes_) {
      ++slot_;
      offset_ = 0;
    }
    if (slot_ == kSlots) return static_cast<const uint8_t*>(otherwise);
    offset_ += bytes;
    return from_[slot_] + offset_ - bytes;
  }

 private:
  const uint8_t* from_[kSlots] = {};
  int64_t bytes_ = 0, offset_ = 0;
  int slot_ = 0;
};

// Adds k .. k + count of a group to its sums.
void multiply_quantised(const LinearCall& call, const TaskRows& rows, const Group& group,
                        int64_t k, int64_t count, Ahead ahead, uint8_t* block, float* sums) {
  const PackedMatrix& w = call.w;
  const bool spread = w.format == Format::kU4 && rows.tile_end - rows.tile >= kWidenTiles;
  const int64_t span = span_of(w);
  const int64_t scale_bytes = w.k / w.block_size * kPanel * (w.half_scales ? 2 : 4);
  const uint8_t* codes[kSlots];
  for (int s = 0; s < kSlots; ++s) {
    codes[s] = weights_at(w, group.panels[s], k);
    if (!spread) continue;
    uint8_t* out = block + s * kQuantisedBlock * kPanel;
    for (int64_t i = 0; i < count / 8; ++i) {
      for (int v = 0; v < kPanelVectors; ++v) {
        const IVec raw = load_codes(codes[s] + i * 4 * kPanel + v * kCodeBytes);
        store_codes(out + i * 8 * kPanel + v * kCodeBytes, low_nibbles(raw));
        store_codes(out + i * 8 * kPanel + 4 * kPanel + v * kCodeBytes, high_nibbles(raw));
      }
    }
    codes[s] = out;
  }
  QuantisedTile t;
  t.half_scales = w.half_scales;
  t.scale_shift = __builtin_ctzll(static_cast<unsigned long long>(w.block_size / span));
  t.first_span = k / span;
  t.spans = count / span;
  const int64_t least = call.rows / call.tiles, longer = call.rows % call.tiles;
  for (int s = 0; s < kSlots; s += kPanelsAtOnce) {
    int64_t row = rows.first, R;
    for (int64_t tile = rows.tile; tile < rows.tile_end; ++tile, row += R) {
      R = tile < longer ? least + 1 : least;
      for (int p = 0; p < kPanelsAtOnce; ++p) {
        const int64_t scales_at = group.panels[s + p] * scale_bytes;
        t.codes[p] = codes[s + p];
        t.scales[p] = static_cast<const uint8_t*>(w.scales) + scales_at;
        t.mins[p] = w.mins == nullptr ? nullptr : static_cast<const uint8_t*>(w.mins) + scales_at;
        t.sums[p] = sums + ((s + p) * rows.count + row - rows.first) * kPanel;
      }
      t.x = call.rounded.codes + row * (w.k / 4);
      t.x_scales = call.rounded.scales + row * (w.k / kActivationGroup);
      t.starts = call.rounded.starts + row * (w.k / span);
      t.totals = w.mins == nullptr ? nullptr : call.rounded.totals + row * (w.k / span);
      t.direct = count == w.k && tile == rows.tile;
      t.ahead = ahead.take(t.spans * kAheadBytes, codes[s]);
      quantised_function(w, spread, R)(t);
    }
  }
}

void multiply_floating(const LinearCall& call, const TaskRows& rows, const Group& group, int64_t k,
                       int64_t count, Ahead ahead, float* block, float* sums) {
  const PackedMatrix& w = call.w;
  const bool dots = kDotsBrain && w.format == Format::kBf16;
  const bool widen = w.format != Format::kF32 && !dots && rows.tile_end - rows.tile >= kWidenTiles;
  const Format format = widen ? Format::kF32 : w.format;
  FloatingTile t;
  t.count = count;
  // So many that the tiles of the block ask for all of the next one.
  const int64_t lines = ahead.bytes() * kAheadStep /
                        (kSlots / kPanelsAtOnce * (rows.tile_end - rows.tile) * count * kAheadBytes);
  t.ahead_lines = static_cast<int>(lines < 1 ? 1 : lines > kMostLines ? kMostLines : lines);
  const void* weights[kSlots];
  for (int s = 0; s < kSlots; ++s) {
    weights[s] = weights_at(w, group.panels[s], k);
    if (!widen) continue;
    float* out = block + s * kFloatingBlock * kPanel;
    const uint16_t* in = static_cast<const uint16_t*>(weights[s]);
    for (int64_t i = 0; i < count * kPanel; i += Vec::kLanes) {
      store(out + i, w.format == Format::kF16 ? load_f16(in + i) : load_bf16(in + i));
    }
    weights[s] = out;
  }
  const int64_t least = call.rows / call.tiles, longer = call.rows % call.tiles;
  for (int s = 0; s < kSlots; s += kPanelsAtOnce) {
    int64_t row = rows.first, R;
    for (int64_t tile = rows.tile; tile < rows.tile_end; ++tile, row += R) {
      R = tile < longer ? least + 1 : least;
      for (int p = 0; p < kPanelsAtOnce; ++p) {
        t.weights[p] = weights[s + p];
        t.sums[p] = sums + ((s + p) * rows.count + row - rows.first) * kPanel;
      }
      t.stride = w.k;
      t.packed = call.rows > 1 && !kReadsRowsInPlace;
      t.x = kReadsRowsInPlace ? call.x + row * w.k + k
            : t.packed ? call.packed_x + row * w.k + (dots ? k / 2 : k) * R : call.x + k;
      t.direct = count == w.k && tile == rows.tile;
      t.ahead = ahead.take(count / kAheadStep * t.ahead_lines * kAheadBytes, weights[s]);
      floating_function(format, R)(t);
    }
  }
}

Vec activate(Activation activation, Vec x) {
  switch (activation) {
    case Activation::kGelu: return gelu(x);
    case Activation::kGeluTanh: return gelu_tanh(x);
    default: return silu(x);
  }
}

// Adds the bias, applies the activation and writes the group's columns of the task's rows.
void finish(const LinearCall& call, const TaskRows& rows, const Group& group, const float* sums) {
  const bool gated = call.activation != Activation::kNone;
  const int64_t width = gated ? call.w.n / 2 : call.w.n;
  float bias[kSlots][kPanel];  // without one, not even cleared: it shows where there is one row
  for (int s = 0; s < kSlots && call.bias != nullptr; ++s) {
    for (int64_t i = 0; i < kPanel; ++i) {
      const int64_t column = group.panels[s] * kPanel + i;
      bias[s][i] = column < call.w.n ? call.bias[column] : 0.0f;
    }
  }
  for (int s = 0; s < (gated ? 1 : group.count); ++s) {
    const int64_t column = group.panels[s] * kPanel;
    const int64_t left = width - column < kPanel ? width - column : kPanel;
    for (int64_t r = 0; r < rows.count; ++r) {
      float* y = call.y + (rows.first + r) * width + column;
      // A line of each row, too far apart for the processor to guess.
      __builtin_prefetch(y + kRowsAhead * width, 1);
      float rest[kPanel];
      float* out = left == kPanel ? y : rest;
      for (int v = 0; v < kPanel; v += Vec::kLanes) {
        Vec value = load(sums + (s * rows.count + r) * kPanel + v);
        if (call.bias != nullptr) value = add(value, load(bias[s] + v));
        if (gated) {
          Vec up = load(sums + (rows.count + r) * kPanel + v);
          if (call.bias != nullptr) up = add(up, load(bias[1] + v));
          value = mul(activate(call.activation, value), up);
        }
        store(out + v, value);
      }
      if (left < kPanel) {
        for (int64_t i = 0; i < left; ++i) y[i] = rest[i];
      }
    }
  }
}

// K of a block: all of it for few tiles, which read the weights once and from memory. Blocks are
// about equal: a short one at the end would cost each tile a turn of its sums for little.
int64_t block_of(const LinearCall& call, int64_t tiles) {
  const int64_t most = is_quantised(call.w.format) ? kQuantisedBlock : kFloatingBlock;
  const int64_t least = call.w.format == Format::kF32 ? kBlockTiles : kWidenTiles;
  if (tiles < least || call.w.k <= most) return call.w.k;
  const int64_t blocks = (call.w.k + most - 1) / most;
  return (call.w.k + blocks * kBlockGrain - 1) / (blocks * kBlockGrain) * kBlockGrain;
}

// Groups that a task holds the sums of; they take turns in each block of K, so that the block of x
// stays near.
int64_t held_groups(const LinearCall& call, int64_t tiles) {
  return block_of(call, tiles) == call.w.k ? 1 : kHeldGroups;
}

size_t task_bytes(const LinearCall& call, int64_t tile, int64_t tile_end) {
  const size_t block = is_quantised(call.w.format)
                           ? static_cast<size_t>(kSlots * kQuantisedBlock * kPanel)
                           : static_cast<size_t>(kSlots * kFloatingBlock * kPanel) * sizeof(float);
  const int64_t rows = tile_row(call, tile_end) - tile_row(call, tile);
  return block + static_cast<size_t>(held_groups(call, tile_end - tile) * kSlots * rows * kPanel) *
                     sizeof(float);
}

// What follows on k .. k + step of group g + i, of `held` ones from g on: the next group of this
// block, or the first of the next (perhaps shorter) block.
Ahead next_of(const LinearCall& call, int64_t g, int64_t i, int64_t held, int64_t k, int64_t step,
              int64_t group_end) {
  const bool turn = i + 1 == held;
  const int64_t next_k = !turn ? k : k + step < call.w.k ? k + step : 0;
  const int64_t next_g = !turn ? g + i + 1 : next_k > 0 ? g : g + held;
  if (next_g >= group_end) return Ahead();
  const int64_t left = call.w.k - next_k;
  return Ahead(call.w, group_at(call, next_g), next_k, left < step ? left : step);
}

void task(const LinearCall& call, int64_t tile, int64_t tile_end, int64_t group,
          int64_t group_end, void* scratch) {
  const int64_t first = tile_row(call, tile);
  const TaskRows rows = {tile, tile_end, first, tile_row(call, tile_end) - first};
  const int64_t step = block_of(call, tile_end - tile), hold = held_groups(call, tile_end - tile);
  const int64_t per_group = kSlots * rows.count * kPanel;
  uint8_t* block = static_cast<uint8_t*>(scratch);
  float* sums = reinterpret_cast<float*>(block + task_bytes(call, tile, tile_end)) -
                hold * per_group;
  for (int64_t g = group; g < group_end; g += hold) {
    const int64_t held = group_end - g < hold ? group_end - g : hold;
    for (int64_t i = 0; i < held * per_group; i += Vec::kLanes) store(sums + i, zero());
    for (int64_t k = 0; k < call.w.k; k += step) {
      const int64_t count = call.w.k - k < step ? call.w.k - k : step;
      for (int64_t i = 0; i < held; ++i) {
        const Group now = group_at(call, g + i);
        const Ahead ahead = rows.count > 2 ? next_of(call, g, i, held, k, step, group_end) : Ahead();
        if (is_quantised(call.w.format)) {
          multiply_quantised(call, rows, now, k, count, ahead, block, sums + i * per_group);
        } else {
          multiply_floating(call, rows, now, k, count, ahead, reinterpret_cast<float*>(block),
                            sums + i * per_group);
        }
      }
    }
    for (int64_t i = 0; i < held; ++i) {
      finish(call, rows, group_at(call, g + i), sums + i * per_group);
    }
  }
}
static_assert(kSlots == 2, "group_at() pairs panels");

}  // namespace

#include "rows_body.h"

namespace {

constexpr LinearKernels kKernels = {kQuantisedRows, kFloatingRows, !kReadsRowsInPlace,
                                    prepare,        task_bytes,    task,
                                    embed,          normalise};

}  // namespace

#endif  // ORTLOOM_LINEAR_BODY_H_
