// What happens to a head before attention: RMSNorm, rotation, and the write to the pools.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_PREPARE_H_
#define ORTLOOM_ATTENTION_PREPARE_H_

#include "attention.h"

namespace {

using ortloom::AttentionStep;

void prepare_head(const AttentionStep& step, const float* in, const float* norm, int64_t position,
                  float factor, float* out) {
  const int64_t size = step.head_size;
  if (norm != nullptr) {
    Vec sum = zero();
    for (int64_t d = 0; d < size; d += Vec::kLanes) {
      const Vec x = load(in + d);
      sum = fma(x, x, sum);
    }
    const float mean = reduce_add(sum) / static_cast<float>(size);
    const float inverse = 1.0f / __builtin_sqrtf(mean + step.epsilon);
    for (int64_t d = 0; d < size; ++d) out[d] = in[d] * inverse * norm[d];
  } else {
    for (int64_t d = 0; d < size; ++d) out[d] = in[d];
  }
  if (step.cos != nullptr) {
    const int64_t half = step.rotary_half;
    const float* c = step.cos + position * half;
    const float* s = step.sin + position * half;
    float* x = out + step.rotary_offset;
    const int64_t pair = step.rotary_interleaved ? 1 : half;
    const int64_t stride = step.rotary_interleaved ? 2 : 1;
    for (int64_t i = 0; i < half; ++i) {
      const float a = x[i * stride], b = x[i * stride + pair];
      x[i * stride] = a * c[i] - b * s[i];
      x[i * stride + pair] = b * c[i] + a * s[i];
    }
  }
  if (factor != 1.0f) {
    for (int64_t d = 0; d < size; ++d) out[d] *= factor;
  }
}

void store_tokens(const AttentionStep& step, int64_t begin, int64_t end) {
  const int64_t row = step.kv_heads * step.head_size;
  int64_t request = 0;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = step.slots[t];
    if (slot < 0) continue;
    while (t >= step.cu_seqlens[request + 1]) ++request;
    const int64_t position = step.past[request] + (t - step.cu_seqlens[request]);
    for (int64_t h = 0; h < step.kv_heads; ++h) {
      prepare_head(step, step.key + t * step.key_stride + h * step.head_size, step.k_norm,
                   position, 1.0f, step.key_cache + slot * row + h * step.head_size);
    }
    __builtin_memcpy(step.value_cache + slot * row, step.value + t * step.value_stride,
                     static_cast<size_t>(row) * sizeof(float));
  }
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_PREPARE_H_
