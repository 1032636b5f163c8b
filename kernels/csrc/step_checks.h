// Checks of one call's tensors against the contract; nothing is written before all have passed.
#ifndef ORTLOOM_STEP_CHECKS_H_
#define ORTLOOM_STEP_CHECKS_H_

#include <string>

#include "paged_attention.h"

namespace ortloom {

// The inputs of a call and the room for their dimensions.
struct Inputs {
  TensorView view[kInputCount];
  int64_t dims[kInputCount][TensorView::kMaxRank];
};

struct StepSizes {
  int64_t tokens, requests, num_blocks;
};

// "block_table"; the contract's name of an input.
const char* input_name(size_t input);

// Checks types, ranks and sizes and fills the shape fields of `step`; throws OpError.
StepSizes check_shapes(const Inputs& inputs, AttentionStep* step);

// Checks cu_seqlens, past_seqlens, block_table and slot_mapping entry by entry; throws OpError.
// `positions` is the number of rows of cos_cache, or -1 without rotation.
void check_indices(const AttentionStep& step, const StepSizes& sizes, int64_t positions);

}  // namespace ortloom

#endif  // ORTLOOM_STEP_CHECKS_H_
