// What the ORT side hands to the packed linear, embedding and norm kernels of one instruction set
// tier. Plain data only, for the reason given in attention.h. Layouts: kernels/packed_contract.py.
#ifndef ORTLOOM_LINEAR_H_
#define ORTLOOM_LINEAR_H_

#include <cstddef>
#include <cstdint>

namespace ortloom {

constexpr int kPanel = 16;            // rows of W in a panel
constexpr int kActivationGroup = 32;  // neighbours of an activation row that share a scale
constexpr int kSlots = 2;             // panels that a group handles side by side
constexpr int kMaxTileRows = 16;

enum class Format { kF32, kF16, kBf16, kU8, kU4 };
enum class Activation { kNone, kSilu, kGelu, kGeluTanh };

constexpr bool is_quantised(Format f) { return f == Format::kU8 || f == Format::kU4; }

// A packed matrix W [n, k].
struct PackedMatrix {
  Format format;
  bool half_scales;    // scales and mins are fp16, else fp32
  int64_t n, k;
  int64_t block_size;  // 0 in the floating formats
  const void* weight;
  const void* scales;  // null in the floating formats
  const void* mins;    // or null
};

// x rounded to int8, tile by tile: the values of a tile of R rows lie [index][R], so that a kernel
// reads one stream. Offsets of a tile that begins at row t: t * (entries of a row).
struct RoundedRows {
  int32_t* codes;   // four neighbours in the bytes of each
  float* scales;    // one a group of 32
  int32_t* starts;  // one a span: what the integer sum begins from
  float* totals;    // one a span: the sum of the codes; null without mins
};

// One call: y = x W^T. Rows are cut into `tiles` of nearly equal size.
struct LinearCall {
  PackedMatrix w;
  const float* bias;  // [n] or null
  Activation activation;
  const float* x;  // [rows, k]
  float* y;        // [rows, n], or [rows, n / 2] with an activation
  int64_t rows, tiles;
  float* packed_x;      // floating formats, rows > 1: x in the order of RoundedRows
  RoundedRows rounded;  // quantised formats
};

static inline int64_t span_of(const PackedMatrix& w) {
  return w.block_size < kActivationGroup ? w.block_size : kActivationGroup;
}
static inline int64_t panels_of(const PackedMatrix& w) { return (w.n + kPanel - 1) / kPanel; }
// First row of tile i; tile_row(tiles) is `rows`.
static inline int64_t tile_row(const LinearCall& call, int64_t i) {
  const int64_t extra = call.rows % call.tiles;
  return call.rows / call.tiles * i + (i < extra ? i : extra);
}
// Groups of panels: neighbours, or a panel of the gate and its panel of the up projection.
static inline int64_t groups_of(const LinearCall& call) {
  const int64_t panels = panels_of(call.w);
  return call.activation != Activation::kNone ? panels / 2 : (panels + kSlots - 1) / kSlots;
}

struct EmbeddingCall {
  PackedMatrix w;
  const int64_t* ids;
  float* rows;  // [T, k]
};

// y = (x + skip) / sqrt(mean((x + skip)^2) + epsilon) * gamma, rows of `width`.
struct NormCall {
  const float *x, *skip, *gamma;  // skip may be null
  float *y, *sum;                 // sum may be null
  int64_t width;
  float epsilon;
};

struct LinearKernels {
  int quantised_rows, floating_rows;  // most rows of a tile
  bool packs_rows;  // floating formats: x is put in order before it is multiplied
  // Rounds or reorders the rows of tiles [first, last) for the tasks.
  void (*prepare)(const LinearCall& call, int64_t first, int64_t last);
  // Bytes of scratch that a task over these tiles needs.
  size_t (*task_bytes)(const LinearCall& call, int64_t tile, int64_t tile_end);
  // Tiles [tile, tile_end) x groups [group, group_end), written to y.
  void (*task)(const LinearCall& call, int64_t tile, int64_t tile_end, int64_t group,
               int64_t group_end, void* scratch);
  void (*embed)(const EmbeddingCall& call, int64_t first, int64_t last);
  void (*norm)(const NormCall& call, int64_t first, int64_t last);
};

extern const LinearKernels kPortableLinear;
extern const LinearKernels kSse2Linear;
extern const LinearKernels kSse2F16cLinear;
extern const LinearKernels kAvx2Linear;
extern const LinearKernels kAvx2VnniLinear;
extern const LinearKernels kAvx512Linear;
extern const LinearKernels kAvx512VnniLinear;
extern const LinearKernels kAvx512Bf16Linear;
extern const LinearKernels kNeonLinear;
extern const LinearKernels kDotprodLinear;
extern const LinearKernels kI8mmLinear;

}  // namespace ortloom

#endif  // ORTLOOM_LINEAR_H_
