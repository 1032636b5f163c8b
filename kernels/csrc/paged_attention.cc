#include "paged_attention.h"

#include <cmath>

#include "attention_plan.h"
#include "step_checks.h"
#include "team.h"

namespace ortloom {

bool is_optional(size_t input) {
  return input == kKey || input == kValue || input == kCosCache || input == kSinCache ||
         (input >= kHeadSink && input < kInputCount);
}

int32_t element_type(size_t input, PoolType pool) {
  switch (input) {
    case kCuSeqlens:
    case kPastSeqlens:
    case kBlockTable:
    case kSlotMapping:
    case kAttentionMetadata:
      return abi::kInt32;
    case kKeyCache:
    case kValueCache:
      switch (pool) {
        case PoolType::kFloat16: return abi::kFloat16;
        case PoolType::kBFloat16: return abi::kBfloat16;
        case PoolType::kInt8: return abi::kInt8;
        case PoolType::kFloat32: return abi::kFloat;
      }
      return abi::kFloat;
    default:
      return abi::kFloat;
  }
}

namespace {

template <PoolType P>
constexpr OpEntry paged_attention_op(const char* name) {
  return {
      name,
      kInputCount,
      P == PoolType::kInt8 ? kScaledOutputs : kPlainOutputs,
      [](size_t input) { return element_type(input, P); },
      [](size_t output) {
        const bool pool = output == kKeyCacheOut || output == kValueCacheOut;
        return pool ? element_type(kKeyCache, P) : int32_t{abi::kFloat};
      },
      is_optional,
      [](size_t) { return false; },
      [](const Api& api, const abi::OrtKernelInfo* info,
         const Tier& tier) -> std::unique_ptr<OpKernel> {
        return std::make_unique<PagedAttention>(api, info, *tier.attention, P);
      },
  };
}

constexpr const char* kCanonical = "NB,BS,H,D";
constexpr const char* kHeadMajor = "NB,H,BS/16,D,16|NB,H,BS,D";

}  // namespace

const OpEntry kPagedAttentionOp = paged_attention_op<PoolType::kFloat32>("PagedAttention");
const OpEntry kPagedAttentionFloat16Op =
    paged_attention_op<PoolType::kFloat16>("PagedAttentionFloat16");
const OpEntry kPagedAttentionBFloat16Op =
    paged_attention_op<PoolType::kBFloat16>("PagedAttentionBFloat16");
const OpEntry kPagedAttentionInt8Op = paged_attention_op<PoolType::kInt8>("PagedAttentionInt8");

AttentionAttributes::AttentionAttributes(const Api& api, const abi::OrtKernelInfo* info,
                                         PoolType pool)
    : pool_(pool) {
  heads_ = api.attribute(info, "num_heads", int64_t{0});
  kv_heads_ = api.attribute(info, "kv_num_heads", int64_t{0});
  window_ = api.attribute(info, "local_window_size", int64_t{-1});
  rotary_ = api.attribute(info, "do_rotary", int64_t{0}) != 0;
  rotary_interleaved_ = api.attribute(info, "rotary_interleaved", int64_t{0}) != 0;
  rotary_offset_ = api.attribute(info, "rotary_offset", int64_t{0});
  causal_ = api.attribute(info, "is_causal", int64_t{1}) != 0;
  scale_ = api.attribute(info, "scale", 0.0f);
  softcap_ = api.attribute(info, "softcap", 0.0f);
  epsilon_ = api.attribute(info, "qk_norm_epsilon", 1e-6f);
  const std::string layout = api.attribute(info, "kv_layout", std::string(kCanonical));
  if (heads_ < 1 || kv_heads_ < 1 || heads_ % kv_heads_ != 0) {
    throw OpError("num_heads " + std::to_string(heads_) + " must be a positive multiple of " +
                  "kv_num_heads " + std::to_string(kv_heads_));
  }
  if (window_ != -1 && window_ < 1) {
    throw OpError("local_window_size " + std::to_string(window_) +
                  " must be -1 (no window) or at least 1 (the token itself)");
  }
  if (rotary_offset_ < 0) {
    throw OpError("rotary_offset " + std::to_string(rotary_offset_) + " is negative");
  }
  if (!std::isfinite(scale_) || scale_ < 0.0f || !std::isfinite(softcap_) || softcap_ < 0.0f ||
      !std::isfinite(epsilon_) || epsilon_ < 0.0f) {
    throw OpError("scale, softcap and qk_norm_epsilon must be finite and not negative");
  }
  head_major_ = layout == kHeadMajor;
  if (!head_major_ && (layout != kCanonical || pool_ != PoolType::kFloat32)) {
    throw OpError("kv_layout \"" + layout + "\" is not supported: the CPU has " +
                      (pool_ == PoolType::kFloat32 ? "\"" + std::string(kCanonical) + "\" and \""
                                                   : std::string("\"")) +
                      kHeadMajor + "\"" +
                      (pool_ == PoolType::kFloat32 ? "" : " for pools that are not float32"),
                  abi::kNotImplemented);
  }
}

StepSizes AttentionAttributes::step(const Inputs& inputs, AttentionStep* out) const {
  AttentionStep& step = *out;
  step = {};
  step.pool = pool_;
  step.head_major = head_major_;
  step.heads = heads_;
  step.kv_heads = kv_heads_;
  step.rotary_offset = rotary_offset_;
  step.rotary_interleaved = rotary_interleaved_;
  step.causal = causal_;
  step.window = window_ > 0 ? window_ : 0;
  step.softcap = softcap_;
  step.epsilon = epsilon_;
  const StepSizes sizes = check_shapes(inputs, &step);
  const auto floats = [&](size_t i) { return static_cast<float*>(inputs.view[i].data); };
  const auto ints = [&](size_t i) { return static_cast<const int32_t*>(inputs.view[i].data); };
  step.scale =
      scale_ > 0.0f ? scale_ : 1.0f / std::sqrt(static_cast<float>(step.head_size));
  const int64_t query_width = heads_ * step.head_size;
  const int64_t key_width = kv_heads_ * step.head_size;
  step.query = floats(kQuery);
  if (inputs.view[kKey].present()) {
    step.key = floats(kKey);
    step.value = floats(kValue);
    step.query_stride = query_width;
    step.key_stride = step.value_stride = key_width;
  } else {
    step.key = step.query + query_width;
    step.value = step.key + key_width;
    step.query_stride = step.key_stride = step.value_stride = query_width + 2 * key_width;
  }
  step.key_cache = inputs.view[kKeyCache].data;
  step.value_cache = inputs.view[kValueCache].data;
  step.key_scale = floats(kKScale);
  step.value_scale = floats(kVScale);
  step.cu_seqlens = ints(kCuSeqlens);
  step.past = ints(kPastSeqlens);
  step.table = ints(kBlockTable);
  step.slots = ints(kSlotMapping);
  step.sinks = floats(kHeadSink);
  step.q_norm = floats(kQNormWeight);
  step.k_norm = floats(kKNormWeight);
  if (rotary_) {
    if (!inputs.view[kCosCache].present()) {
      throw OpError("do_rotary = 1 needs cos_cache and sin_cache");
    }
    step.cos = floats(kCosCache);
    step.sin = floats(kSinCache);
  }
  check_indices(step, sizes, rotary_ ? inputs.view[kCosCache].shape[0] : -1);

  return sizes;
}

void check_in_place(const Api& api, abi::OrtKernelContext* context, const Inputs& inputs,
                    size_t first_output, PoolType pool) {
  constexpr size_t kPools[] = {kKeyCache, kValueCache, kKScale, kVScale};
  const size_t count = pool == PoolType::kInt8 ? 4 : 2;
  for (size_t i = 0; i < count; ++i) {
    const TensorView& view = inputs.view[kPools[i]];
    if (api.output(context, first_output + i, view.shape, view.rank) == view.data) continue;
    const std::string name = input_name(kPools[i]);
    throw OpError(name + "_out must be bound to the same memory as " + name +
                  ": bind one OrtValue as input and as output");
  }
}

void PagedAttention::compute(abi::OrtKernelContext* context) const {
  Inputs inputs;
  for (size_t i = 0; i < kInputCount; ++i) {
    inputs.view[i] = api_.input(context, i, inputs.dims[i]);
  }
  AttentionStep step;
  const StepSizes sizes = attributes_.step(inputs, &step);
  check_in_place(api_, context, inputs, kKeyCacheOut, attributes_.pool());
  const int64_t output_shape[] = {sizes.tokens, step.heads * step.head_size};
  step.output = static_cast<float*>(api_.output(context, kOutput, output_shape, 2));
  if (sizes.tokens == 0) return;

  AttentionPlan plan(kernels_, step, sizes);
  team::run(plan.store_tasks(), [&](size_t index) { plan.store(index); });
  if (plan.is_small()) {
    for (size_t i = 0; i < plan.tasks(); ++i) plan.task(i);
  } else {
    team::run(plan.tasks(), [&](size_t index) { plan.task(index); });
  }
  for (size_t i = 0; i < plan.merge_tasks(); ++i) plan.merge(i);
}

}  // namespace ortloom
