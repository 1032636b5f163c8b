// ortloom::PagedAttention version 1 (kernels/contract.py) as an ONNX Runtime kernel.
#ifndef ORTLOOM_PAGED_ATTENTION_H_
#define ORTLOOM_PAGED_ATTENTION_H_

#include <cstdint>
#include <string>

#include "attention.h"
#include "op.h"

namespace ortloom {

// Positions of the contract's inputs.
enum Input : size_t {
  kQuery,
  kKey,
  kValue,
  kKeyCache,
  kValueCache,
  kCuSeqlens,
  kPastSeqlens,
  kBlockTable,
  kCosCache,
  kSinCache,
  kSlotMapping,
  kHeadSink,
  kQNormWeight,
  kKNormWeight,
  kKScale,
  kVScale,
  kAttentionMetadata,
  kInputCount,
};
enum Output : size_t { kOutput, kKeyCacheOut, kValueCacheOut, kKeyScaleOut, kValueScaleOut };
constexpr size_t kPlainOutputs = 3, kScaledOutputs = 5;

bool is_optional(size_t input);
// Element type of an input for pools of type `pool`.
int32_t element_type(size_t input, PoolType pool);

struct Inputs;
struct StepSizes;

// The attributes of a node; with the inputs they make a step.
class AttentionAttributes {
 public:
  // Reads and checks them; throws OpError.
  AttentionAttributes(const Api& api, const abi::OrtKernelInfo* info, PoolType pool);

  PoolType pool() const { return pool_; }
  int64_t heads() const { return heads_; }
  int64_t kv_heads() const { return kv_heads_; }
  // Checks every input and fills the step but for its output; throws OpError.
  StepSizes step(const Inputs& inputs, AttentionStep* step) const;

 private:
  PoolType pool_;
  int64_t heads_, kv_heads_, window_, rotary_offset_;
  float scale_, softcap_, epsilon_;
  bool rotary_, rotary_interleaved_, causal_, head_major_;
};

// Throws OpError unless every pool's output, the first of which is `first_output`, is the memory of
// its input.
void check_in_place(const Api& api, abi::OrtKernelContext* context, const Inputs& inputs,
                    size_t first_output, PoolType pool);

class PagedAttention : public OpKernel {
 public:
  PagedAttention(const Api& api, const abi::OrtKernelInfo* info, const AttentionKernels& kernels,
                 PoolType pool)
      : api_(api), kernels_(kernels), attributes_(api, info, pool) {}

  void compute(abi::OrtKernelContext* context) const override;

 private:
  Api api_;
  const AttentionKernels& kernels_;
  AttentionAttributes attributes_;
};

}  // namespace ortloom

#endif  // ORTLOOM_PAGED_ATTENTION_H_
