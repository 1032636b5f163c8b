#include "paged_attention.h"

#include <cmath>
#include <vector>

#include "scratch.h"
#include "step_checks.h"
#include "team.h"

namespace ortloom {
namespace {

// Multiply-adds below which a call stays on the calling thread, and tokens that one store task
// takes. A wake-up costs as much as the inline work it would save.
constexpr int64_t kInlineWork = 200'000;
constexpr int64_t kStoreTokens = 16;
// Query rows up to which a tile waits for memory more than it computes.
constexpr int64_t kFewRows = 16;
// A tile with more than 1/16 of the call's work is split by partition.
constexpr int64_t kSplitShare = 16;

struct Task {
  size_t tile;
  size_t tiles;       // so many neighbours: KV heads of one token tile
  int64_t partition;  // -1: all of the tile's partitions
  size_t partial;     // where its result goes, in floats
  size_t stride;      // floats from a tile's result to the next one's
};

struct SplitTile {
  size_t tile;
  PartitionRange range;
  size_t partial;
};

// The work of one call. Which tasks there are depends on the batch; what a task computes for a row
// does not.
struct Plan {
  const AttentionKernels* kernels = nullptr;
  AttentionStep step{};
  size_t scratch_floats = 0;
  std::vector<QueryTile> tiles;
  std::vector<Task> tasks;
  std::vector<SplitTile> splits;
  std::vector<float> partials;
  int64_t work = 0;
};

int64_t tile_work(const AttentionStep& step, const QueryTile& tile) {
  const PartitionRange range = visible_partitions(step, tile);
  int64_t keys = (range.last - range.first) * kPartitionKeys;
  if (keys > tile.kv_length) keys = tile.kv_length;
  return tile.count * (step.heads / step.kv_heads) * keys * step.head_size * 2;
}

void build(Plan* plan, const StepSizes& sizes) {
  const AttentionStep& step = plan->step;
  const int64_t group = step.heads / step.kv_heads;
  const int64_t tile_tokens = kTargetRows / group > 0 ? kTargetRows / group : 1;
  plan->scratch_floats = plan->kernels->scratch_floats(step, tile_tokens * group);
  for (int64_t r = 0; r < sizes.requests; ++r) {
    const int64_t begin = step.cu_seqlens[r], end = step.cu_seqlens[r + 1];
    const int64_t past = step.past[r];
    for (int64_t first = begin; first < end; first += tile_tokens) {
      const int64_t count = end - first < tile_tokens ? end - first : tile_tokens;
      for (int64_t h = 0; h < step.kv_heads; ++h) {
        plan->tiles.push_back(
            {r, first, count, past + (first - begin), past + (end - begin), h});
        plan->work += tile_work(step, plan->tiles.back());
      }
    }
  }
  // The KV heads of a token tile are neighbours in `tiles` and equal in work. Split ones go
  // partition by partition, so that neighbouring tasks read neighbouring memory.
  size_t partial = 0;
  const size_t neighbours = static_cast<size_t>(step.kv_heads);
  // A few rows only wait for memory. A pool row holds all heads: read by one thread it comes in as
  // one stream, by several each fetches ahead into what is the others'.
  const size_t enough = 2 * static_cast<size_t>(team::threads());
  const bool many_tiles = plan->tiles.size() / neighbours >= enough;
  for (size_t i = 0; i < plan->tiles.size(); i += neighbours) {
    const QueryTile& tile = plan->tiles[i];
    const PartitionRange range = visible_partitions(step, tile);
    const size_t parts = static_cast<size_t>(range.last - range.first);
    const bool few_rows = tile.count * group <= kFewRows;
    const bool split = plan->work >= kInlineWork && parts > 1 &&
                       tile_work(step, tile) * kSplitShare > plan->work;
    if (!split) {
      const size_t together = few_rows && many_tiles ? neighbours : 1;
      for (size_t h = 0; h < neighbours; h += together) {
        plan->tasks.push_back({i + h, together, -1, 0, 0});
      }
      continue;
    }
    const size_t floats = partial_floats(step, tile.count * group);
    for (size_t p = 0; p < parts; ++p) {
      const size_t together = few_rows && parts >= enough ? neighbours : 1;
      for (size_t h = 0; h < neighbours; h += together) {
        plan->tasks.push_back({i + h, together, range.first + static_cast<int64_t>(p),
                               partial + (h * parts + p) * floats, parts * floats});
      }
    }
    for (size_t h = 0; h < neighbours; ++h) {
      plan->splits.push_back({i + h, range, partial + h * parts * floats});
    }
    partial += neighbours * parts * floats;
  }
  plan->partials.resize(partial);
}

float* scratch_of(size_t floats) {
  return static_cast<float*>(task_scratch().reserve(floats * sizeof(float)));
}

void run_task(Plan* plan, const Task& task) {
  float* scratch = scratch_of(plan->scratch_floats);
  for (size_t i = 0; i < task.tiles; ++i) {
    const QueryTile& tile = plan->tiles[task.tile + i];
    if (task.partition < 0) {
      plan->kernels->attend(plan->step, tile, scratch);
    } else {
      float* partial = plan->partials.data() + task.partial + i * task.stride;
      plan->kernels->attend_partition(plan->step, tile, task.partition, scratch, partial);
    }
  }
}

}  // namespace

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

PagedAttention::PagedAttention(const Api& api, const abi::OrtKernelInfo* info,
                               const AttentionKernels& kernels, PoolType pool)
    : api_(api), kernels_(kernels), pool_(pool) {
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

void PagedAttention::compute(abi::OrtKernelContext* context) const {
  Inputs inputs;
  for (size_t i = 0; i < kInputCount; ++i) {
    inputs.view[i] = api_.input(context, i, inputs.dims[i]);
  }
  Plan plan;
  plan.kernels = &kernels_;
  AttentionStep& step = plan.step;
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

  // Every pool is written in place: its output is the memory of its input.
  const auto in_place = [&](size_t input, size_t output) {
    const TensorView& pool = inputs.view[input];
    if (api_.output(context, output, pool.shape, pool.rank) == pool.data) return;
    const std::string name = input_name(input);
    throw OpError(name + "_out must be bound to the same memory as " + name +
                  ": bind one OrtValue as input and as output");
  };
  in_place(kKeyCache, kKeyCacheOut);
  in_place(kValueCache, kValueCacheOut);
  if (pool_ == PoolType::kInt8) {
    in_place(kKScale, kKeyScaleOut);
    in_place(kVScale, kValueScaleOut);
  }
  const int64_t output_shape[] = {sizes.tokens, query_width};
  step.output = static_cast<float*>(api_.output(context, kOutput, output_shape, 2));
  if (sizes.tokens == 0) return;

  build(&plan, sizes);
  const size_t stores = static_cast<size_t>((sizes.tokens + kStoreTokens - 1) / kStoreTokens);
  if (stores < 4) {
    kernels_.store(step, 0, sizes.tokens);
  } else {
    team::run(stores, [&](size_t index) {
      const int64_t begin = static_cast<int64_t>(index) * kStoreTokens;
      const int64_t end = begin + kStoreTokens;
      kernels_.store(step, begin, end < sizes.tokens ? end : sizes.tokens);
    });
  }
  if (plan.work < kInlineWork) {
    for (const Task& task : plan.tasks) run_task(&plan, task);
  } else {
    team::run(plan.tasks.size(), [&](size_t index) { run_task(&plan, plan.tasks[index]); });
  }
  for (const SplitTile& split : plan.splits) {
    float* scratch = scratch_of(plan.scratch_floats);
    kernels_.merge(step, plan.tiles[split.tile], split.range.first, split.range.last,
                   plan.partials.data() + split.partial, scratch);
  }
}

}  // namespace ortloom
