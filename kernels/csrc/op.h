// What register.cc needs to know of an op.
#ifndef ORTLOOM_OP_H_
#define ORTLOOM_OP_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "isa.h"
#include "ort_api.h"

namespace ortloom {

// One node of a session.
class OpKernel {
 public:
  virtual ~OpKernel() = default;
  // Runs one call; throws OpError before anything is written if an input breaks the contract.
  virtual void compute(abi::OrtKernelContext* context) const = 0;
};

struct OpEntry {
  const char* name;
  size_t inputs, outputs;
  int32_t (*input_type)(size_t index);
  int32_t (*output_type)(size_t index);
  bool (*input_is_optional)(size_t index);
  bool (*output_is_optional)(size_t index);
  // Reads and checks the attributes; throws OpError.
  std::unique_ptr<OpKernel> (*create)(const Api& api, const abi::OrtKernelInfo* info,
                                      const Tier& tier);
};

extern const OpEntry kPagedAttentionOp;
extern const OpEntry kPagedAttentionFloat16Op;
extern const OpEntry kPagedAttentionBFloat16Op;
extern const OpEntry kPagedAttentionInt8Op;
extern const OpEntry kDecoderLayerOp;
extern const OpEntry kDecoderLayerFloat16Op;
extern const OpEntry kDecoderLayerBFloat16Op;
extern const OpEntry kDecoderLayerInt8Op;
extern const OpEntry kPackedLinearOp;
extern const OpEntry kPackedEmbeddingOp;
extern const OpEntry kPackedExpertsOp;
extern const OpEntry kExpertRoutingOp;
extern const OpEntry kSkipRmsNormOp;

}  // namespace ortloom

#endif  // ORTLOOM_OP_H_
