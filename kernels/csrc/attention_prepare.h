// What happens to a head before attention: RMSNorm, rotation, and the write to the pools.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_PREPARE_H_
#define ORTLOOM_ATTENTION_PREPARE_H_

#include "attention_pools.h"

namespace {

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
    const Vec scale = splat(inverse);
    for (int64_t d = 0; d < size; d += Vec::kLanes) {
      store(out + d, mul(mul(load(in + d), scale), load(norm + d)));
    }
  } else {
    for (int64_t d = 0; d < size; d += Vec::kLanes) store(out + d, load(in + d));
  }
  if (step.cos != nullptr) {
    const int64_t half = step.rotary_half;
    const float* c = step.cos + position * half;
    const float* s = step.sin + position * half;
    float* x = out + step.rotary_offset;
    const int64_t pair = step.rotary_interleaved ? 1 : half;
    const int64_t stride = step.rotary_interleaved ? 2 : 1;
    int64_t i = 0;
    for (; !step.rotary_interleaved && i + Vec::kLanes <= half; i += Vec::kLanes) {
      const Vec a = load(x + i), b = load(x + i + pair), cosine = load(c + i), sine = load(s + i);
      store(x + i, sub(mul(a, cosine), mul(b, sine)));
      store(x + i + pair, add(mul(b, cosine), mul(a, sine)));
    }
    for (; i < half; ++i) {
      const float a = x[i * stride], b = x[i * stride + pair];
      x[i * stride] = a * c[i] - b * s[i];
      x[i * stride + pair] = b * c[i] + a * s[i];
    }
  }
  if (factor != 1.0f) {
    const Vec by = splat(factor);
    for (int64_t d = 0; d < size; d += Vec::kLanes) store(out + d, mul(by, load(out + d)));
  }
}

// Rounds a prepared head to the pool's type. Int8: scale = max|x| / 127, code = x * (127 / max|x|)
// rounded to nearest even; all codes are 0 where the maximum is too small to divide by.
template <class Element>
void quantise_head(const float* x, int64_t size, typename Element::Type* out, float* scale) {
  if constexpr (Element::kScaled) {
    constexpr float kSmallest = 7.888609052210118e-31f;  // 2^-100
    Vec top = zero();
    for (int64_t d = 0; d < size; d += Vec::kLanes) top = maximum(absolute(load(x + d)), top);
    const float largest = reduce_max(top);
    const Vec inverse = splat(largest >= kSmallest ? 127.0f / largest : 0.0f);
    for (int64_t d = 0; d < size; d += Vec::kLanes) {
      const Vec code = mul(load(x + d), inverse);
      // Both ends, so that an infinite or undefined input still gives a code.
      const Vec low = maximum(code, splat(-127.0f));
      Element::round(out + d, sub(zero(), maximum(sub(zero(), low), splat(-127.0f))));
    }
    *scale = largest / 127.0f;
  } else {
    for (int64_t d = 0; d < size; d += Vec::kLanes) Element::round(out + d, load(x + d));
  }
}

template <class P>
void store_tokens_in(const AttentionStep& step, int64_t begin, int64_t end) {
  using Element = typename P::Element;
  using Type = typename P::Type;
  const int64_t size = step.head_size;
  Type* keys = static_cast<Type*>(step.key_cache);
  Type* values = static_cast<Type*>(step.value_cache);
  alignas(64) float prepared[ortloom::kMaxHeadSize];
  alignas(64) Type rounded[ortloom::kMaxHeadSize];
  int64_t request = 0;
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = step.slots[t];
    if (slot < 0) continue;
    while (t >= step.cu_seqlens[request + 1]) ++request;
    const int64_t position = step.past[request] + (t - step.cu_seqlens[request]);
    const int64_t block = slot / step.block_size, token = slot % step.block_size;
    for (int64_t h = 0; h < step.kv_heads; ++h) {
      const float* key = step.key + t * step.key_stride + h * size;
      const float* value = step.value + t * step.value_stride + h * size;
      float key_scale = 0.0f, value_scale = 0.0f;
      prepare_head(step, key, step.k_norm, position, 1.0f, prepared);
      Type* to = keys + key_offset<P>(step, block, token, h);
      if constexpr (P::kHeadMajor) {
        quantise_head<Element>(prepared, size, rounded, &key_scale);
        for (int64_t d = 0; d < size; ++d) to[d * kGroupKeys] = rounded[d];
      } else {
        quantise_head<Element>(prepared, size, to, &key_scale);
      }
      quantise_head<Element>(value, size, values + value_offset<P>(step, block, token, h),
                             &value_scale);
      if constexpr (Element::kScaled) {
        step.key_scale[scale_offset(step, block, token, h)] = key_scale;
        step.value_scale[scale_offset(step, block, token, h)] = value_scale;
      }
    }
  }
}

void store_tokens(const AttentionStep& step, int64_t begin, int64_t end) {
  with_pool(step, [&](auto pool) { store_tokens_in<decltype(pool)>(step, begin, end); });
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_PREPARE_H_
