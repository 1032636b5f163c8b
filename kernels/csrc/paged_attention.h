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

class PagedAttention : public OpKernel {
 public:
  // Reads and checks the attributes; throws OpError.
  PagedAttention(const Api& api, const abi::OrtKernelInfo* info, const AttentionKernels& kernels,
                 PoolType pool);

  void compute(abi::OrtKernelContext* context) const override;

 private:
  Api api_;
  const AttentionKernels& kernels_;
  const PoolType pool_;
  int64_t heads_, kv_heads_, window_, rotary_offset_;
  float scale_, softcap_, epsilon_;
  bool rotary_, rotary_interleaved_, causal_, head_major_;
};

}  // namespace ortloom

#endif  // ORTLOOM_PAGED_ATTENTION_H_
