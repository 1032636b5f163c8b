// The row-wise kernels: embedding gather and RMS norm. Part of linear_body.h.
#ifndef ORTLOOM_ROWS_BODY_H_
#define ORTLOOM_ROWS_BODY_H_

#include "linear.h"

namespace {

// Scale or minimum of row r of a panel for one block.
float block_value(const void* base, bool half, int64_t panel_block, int64_t r) {
  float lanes[Vec::kLanes];
  const int64_t index = panel_block * kPanel + r / Vec::kLanes * Vec::kLanes;
  store(lanes, load_scale(static_cast<const uint8_t*>(base), half, index));
  return lanes[r % Vec::kLanes];
}

void embed_quantised(const PackedMatrix& w, int64_t id, float* out) {
  const int64_t panel = id / kPanel, r = id % kPanel;
  const int64_t blocks = w.k / w.block_size;
  const uint8_t* codes = static_cast<const uint8_t*>(w.weight) + weight_bytes(w, panel * w.k);
  const float zero_point = w.format == Format::kU8 ? 128.0f : 8.0f;
  for (int64_t b = 0; b < blocks; ++b) {
    const float scale = block_value(w.scales, w.half_scales, panel * blocks + b, r);
    float min = 0.0f;
    if (w.mins != nullptr) min = block_value(w.mins, w.half_scales, panel * blocks + b, r);
    for (int64_t k = b * w.block_size; k < (b + 1) * w.block_size; k += 4) {
      const bool bytes = w.format == Format::kU8;
      const uint8_t* four = codes + (bytes ? k / 4 : k / 8) * 4 * kPanel + r * 4;
      const int shift = k % 8 < 4 ? 0 : 4;
      for (int j = 0; j < 4; ++j) {
        const int code = bytes ? four[j] : (four[j] >> shift & 15);
        out[k + j] = w.mins != nullptr ? scale * static_cast<float>(code) + min
                                       : scale * (static_cast<float>(code) - zero_point);
      }
    }
  }
}

void embed_floating(const PackedMatrix& w, int64_t id, float* out) {
  const int64_t panel = id / kPanel, r = id % kPanel, lane = r % Vec::kLanes;
  float lanes[Vec::kLanes];
  for (int64_t k = 0; k < w.k; ++k) {
    const int64_t index = (panel * w.k + k) * kPanel + r;
    if (w.format == Format::kF32) {
      out[k] = static_cast<const float*>(w.weight)[index];
      continue;
    }
    const uint16_t* half = static_cast<const uint16_t*>(w.weight) + index - lane;
    store(lanes, w.format == Format::kF16 ? load_f16(half) : load_bf16(half));
    out[k] = lanes[lane];
  }
}

void embed(const EmbeddingCall& call, int64_t first, int64_t last) {
  for (int64_t i = first; i < last; ++i) {
    float* out = call.rows + i * call.w.k;
    if (is_quantised(call.w.format)) {
      embed_quantised(call.w, call.ids[i], out);
    } else {
      embed_floating(call.w, call.ids[i], out);
    }
  }
}

// The sum of squares in 16 chains, element i in chain i mod 16, whatever the width of Vec; the
// chains are folded in halves, so that every tier with fused multiply-adds gives the same bits.
float mean_square(const float* x, int64_t width) {
  Vec sum[kPanelVectors];
  for (int v = 0; v < kPanelVectors; ++v) sum[v] = zero();
  int64_t i = 0;
  for (; i + kPanel <= width; i += kPanel) {
    for (int v = 0; v < kPanelVectors; ++v) {
      const Vec a = load(x + i + v * Vec::kLanes);
      sum[v] = fma(a, a, sum[v]);
    }
  }
  float chains[kPanel] = {};
  if (i < width) {
    for (int64_t j = i; j < width; ++j) chains[j - i] = x[j];
    for (int v = 0; v < kPanelVectors; ++v) {
      const Vec a = load(chains + v * Vec::kLanes);
      sum[v] = fma(a, a, sum[v]);
    }
  }
  for (int v = 0; v < kPanelVectors; ++v) store(chains + v * Vec::kLanes, sum[v]);
  for (int half = kPanel / 2; half > 0; half /= 2) {
    for (int c = 0; c < half; ++c) chains[c] += chains[c + half];
  }
  return chains[0] / static_cast<float>(width);
}

void normalise(const NormCall& call, int64_t first, int64_t last) {
  const int64_t width = call.width;
  for (int64_t row = first; row < last; ++row) {
    const float* x = call.x + row * width;
    float* y = call.y + row * width;
    if (call.skip != nullptr) {
      // Where the sum is no output, y holds it until it is scaled.
      float* sum = call.sum != nullptr ? call.sum + row * width : y;
      const float* skip = call.skip + row * width;
      int64_t i = 0;
      for (; i + Vec::kLanes <= width; i += Vec::kLanes) {
        store(sum + i, add(load(x + i), load(skip + i)));
      }
      for (; i < width; ++i) sum[i] = x[i] + skip[i];
      x = sum;
    } else if (call.sum != nullptr) {
      for (int64_t i = 0; i < width; ++i) call.sum[row * width + i] = x[i];
    }
    const float factor = 1.0f / __builtin_sqrtf(mean_square(x, width) + call.epsilon);
    const Vec factors = splat(factor);
    int64_t i = 0;
    for (; i + Vec::kLanes <= width; i += Vec::kLanes) {
      store(y + i, mul(mul(load(x + i), factors), load(call.gamma + i)));
    }
    for (; i < width; ++i) y[i] = x[i] * factor * call.gamma[i];
  }
}

}  // namespace

#endif  // ORTLOOM_ROWS_BODY_H_
