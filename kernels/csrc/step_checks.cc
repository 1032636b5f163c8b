#include "step_checks.h"

namespace ortloom {
namespace {

constexpr const char* kNames[kInputCount] = {
    "query",         "key",           "value",         "key_cache",
    "value_cache",   "cumulative_sequence_length",     "past_seqlens",
    "block_table",   "cos_cache",     "sin_cache",     "slot_mapping",
    "head_sink",     "q_norm_weight", "k_norm_weight", "k_scale",
    "v_scale",       "attention_metadata",
};

std::string text(int64_t number) { return std::to_string(number); }

std::string shape_text(const TensorView& view) {
  std::string out = "[";
  for (size_t i = 0; i < view.rank; ++i) out += (i ? ", " : "") + text(view.shape[i]);
  return out + "]";
}

class Shapes {
 public:
  explicit Shapes(const Inputs& inputs) : inputs_(inputs) {}

  void rank(size_t input, size_t wanted) const {
    const TensorView& view = inputs_.view[input];
    if (view.rank != wanted) {
      throw OpError(std::string(kNames[input]) + " has shape " + shape_text(view) + ", but " +
                    text(static_cast<int64_t>(wanted)) + " dimensions are needed");
    }
  }

  void size(size_t input, size_t axis, int64_t wanted, const char* meaning) const {
    const TensorView& view = inputs_.view[input];
    if (view.shape[axis] != wanted) {
      throw OpError(std::string(kNames[input]) + " has shape " + shape_text(view) +
                    ", but axis " + text(static_cast<int64_t>(axis)) + " must be " +
                    text(wanted) + " (" + meaning + ")");
    }
  }

  int64_t at(size_t input, size_t axis) const { return inputs_.view[input].shape[axis]; }

 private:
  const Inputs& inputs_;
};

const char* type_text(int32_t type) {
  switch (type) {
    case abi::kFloat16: return "float16 (10)";
    case abi::kBfloat16: return "bfloat16 (16)";
    case abi::kInt8: return "int8 (3)";
    case abi::kInt32: return "int32 (6)";
    default: return "float32 (1)";
  }
}

void check_rule(const char* what, int64_t value, int64_t low, int64_t high, int64_t multiple) {
  if (value < low || value > high || value % multiple != 0) {
    throw OpError(std::string(what) + " " + text(value) + " is not supported: it must be " +
                  text(low) + " to " + text(high) + " and a multiple of " + text(multiple));
  }
}

}  // namespace

const char* input_name(size_t input) { return kNames[input]; }

StepSizes check_shapes(const Inputs& inputs, AttentionStep* step) {
  const Shapes shapes(inputs);
  for (size_t i = 0; i < kInputCount; ++i) {
    const TensorView& view = inputs.view[i];
    if (!view.present()) {
      const bool scale = i == kKScale || i == kVScale;
      if (is_optional(i) && !(scale && step->pool == PoolType::kInt8)) continue;
      throw OpError(std::string(kNames[i]) + " is missing");
    }
    const bool scale = i == kKScale || i == kVScale;
    if (i == kAttentionMetadata || (scale && step->pool != PoolType::kInt8)) {
      throw OpError(std::string(kNames[i]) + " is reserved: version 1 on the CPU takes none" +
                        (scale ? " with pools that are not int8" : ""),
                    abi::kNotImplemented);
    }
    const int32_t wanted = element_type(i, step->pool);
    if (view.type != wanted) {
      throw OpError(std::string(kNames[i]) + " has element type " + text(view.type) +
                        ", but version 1 on the CPU takes " + type_text(wanted),
                    abi::kNotImplemented);
    }
  }
  StepSizes sizes;
  shapes.rank(kKeyCache, 4);
  shapes.rank(kValueCache, 4);
  sizes.num_blocks = shapes.at(kKeyCache, 0);
  step->block_size = shapes.at(kKeyCache, 1);
  step->head_size = shapes.at(kKeyCache, 3);
  check_rule("head size", step->head_size, kMinHeadSize, kMaxHeadSize, kHeadSizeMultiple);
  check_rule("block size", step->block_size, kMinBlockSize, kMaxBlockSize, kBlockSizeMultiple);
  shapes.size(kKeyCache, 2, step->kv_heads, "kv_num_heads");
  for (size_t axis = 0; axis < 4; ++axis) {
    shapes.size(kValueCache, axis, shapes.at(kKeyCache, axis), "as in key_cache");
  }
  if (step->pool == PoolType::kInt8) {
    for (const size_t input : {kKScale, kVScale}) {
      shapes.rank(input, 3);
      for (size_t axis = 0; axis < 3; ++axis) {
        shapes.size(input, axis, shapes.at(kKeyCache, axis), "as in key_cache");
      }
    }
  }
  if (inputs.view[kKey].present() != inputs.view[kValue].present()) {
    throw OpError("key and value must be given together, or neither and query holds packed QKV");
  }
  shapes.rank(kQuery, 2);
  sizes.tokens = shapes.at(kQuery, 0);
  if (inputs.view[kKey].present()) {
    shapes.size(kQuery, 1, step->heads * step->head_size, "num_heads * head size");
    for (const size_t input : {kKey, kValue}) {
      shapes.rank(input, 2);
      shapes.size(input, 0, sizes.tokens, "tokens, as in query");
      shapes.size(input, 1, step->kv_heads * step->head_size, "kv_num_heads * head size");
    }
  } else {
    shapes.size(kQuery, 1, (step->heads + 2 * step->kv_heads) * step->head_size,
                "(num_heads + 2 * kv_num_heads) * head size: packed QKV, without key and value");
  }
  shapes.rank(kPastSeqlens, 1);
  sizes.requests = shapes.at(kPastSeqlens, 0);
  shapes.rank(kCuSeqlens, 1);
  shapes.size(kCuSeqlens, 0, sizes.requests + 1, "requests + 1");
  shapes.rank(kBlockTable, 2);
  shapes.size(kBlockTable, 0, sizes.requests, "requests, as in past_seqlens");
  step->table_width = shapes.at(kBlockTable, 1);
  shapes.rank(kSlotMapping, 1);
  shapes.size(kSlotMapping, 0, sizes.tokens, "tokens, as in query");
  if (inputs.view[kHeadSink].present()) {
    shapes.rank(kHeadSink, 1);
    shapes.size(kHeadSink, 0, step->heads, "num_heads");
  }
  for (const size_t input : {kQNormWeight, kKNormWeight}) {
    if (!inputs.view[input].present()) continue;
    shapes.rank(input, 1);
    shapes.size(input, 0, step->head_size, "head size");
  }
  if (inputs.view[kQNormWeight].present() != inputs.view[kKNormWeight].present()) {
    throw OpError("q_norm_weight and k_norm_weight must be given together");
  }
  if (inputs.view[kCosCache].present() != inputs.view[kSinCache].present()) {
    throw OpError("cos_cache and sin_cache must be given together");
  }
  if (inputs.view[kCosCache].present()) {
    shapes.rank(kCosCache, 2);
    shapes.rank(kSinCache, 2);
    step->rotary_half = shapes.at(kCosCache, 1);
    for (size_t axis = 0; axis < 2; ++axis) {
      shapes.size(kSinCache, axis, shapes.at(kCosCache, axis), "as in cos_cache");
    }
    if (step->rotary_half < 1 ||
        step->rotary_offset + 2 * step->rotary_half > step->head_size) {
      throw OpError("rotary_offset " + text(step->rotary_offset) + " and cos_cache of width " +
                    text(step->rotary_half) + " do not fit head size " +
                    text(step->head_size));
    }
  }
  return sizes;
}

void check_indices(const AttentionStep& step, const StepSizes& sizes, int64_t positions) {
  const int32_t* cu = step.cu_seqlens;
  const std::string lengths = kNames[kCuSeqlens];
  if (cu[0] != 0) throw OpError(lengths + "[0] = " + text(cu[0]) + ", but must be 0");
  for (int64_t r = 0; r < sizes.requests; ++r) {
    if (cu[r + 1] < cu[r]) {
      throw OpError(lengths + "[" + text(r + 1) + "] = " + text(cu[r + 1]) +
                    " is below the entry before it, " + text(cu[r]));
    }
    if (step.past[r] < 0) {
      throw OpError("past_seqlens[" + text(r) + "] = " + text(step.past[r]) + " is negative");
    }
    const int64_t added = cu[r + 1] - cu[r];
    const int64_t end = step.past[r] + added;
    if (added > 0 && end > step.table_width * step.block_size) {
      throw OpError("request " + text(r) + " has " + text(end) + " tokens, but its row of " +
                    "block_table covers " + text(step.table_width * step.block_size) + " (" +
                    text(step.table_width) + " blocks of " + text(step.block_size) + ")");
    }
    if (added > 0 && positions >= 0 && end > positions) {
      throw OpError("request " + text(r) + " reaches position " + text(end - 1) +
                    ", but cos_cache has " + text(positions) + " rows");
    }
  }
  if (cu[sizes.requests] != sizes.tokens) {
    throw OpError(lengths + " ends at " + text(cu[sizes.requests]) + ", but query has " +
                  text(sizes.tokens) + " tokens");
  }
  const int64_t entries = sizes.requests * step.table_width;
  for (int64_t i = 0; i < entries; ++i) {
    if (step.table[i] < -1 || step.table[i] >= sizes.num_blocks) {
      throw OpError("block_table[" + text(i / step.table_width) + ", " +
                    text(i % step.table_width) + "] = " + text(step.table[i]) +
                    " is outside -1 .. " + text(sizes.num_blocks - 1));
    }
  }
  const int64_t slots = sizes.num_blocks * step.block_size;
  for (int64_t t = 0; t < sizes.tokens; ++t) {
    if (step.slots[t] < -1 || step.slots[t] >= slots) {
      throw OpError("slot_mapping[" + text(t) + "] = " + text(step.slots[t]) +
                    " is outside -1 .. " + text(slots - 1));
    }
  }
}

}  // namespace ortloom
