// ortloom::PackedEmbedding version 1 (kernels/packed_contract.py) as an ONNX Runtime kernel.

#include <algorithm>
#include <string>

#include "linear.h"
#include "node_inputs.h"
#include "op.h"
#include "packed_matrix.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t { kIds, kWeight, kScales, kMins, kInputCount };

constexpr int64_t kTaskRows = 16;

class PackedEmbedding : public OpKernel {
 public:
  PackedEmbedding(const Api& api, const abi::OrtKernelInfo* info, const LinearKernels& kernels)
      : api_(api), kernels_(kernels), attributes_(api, info), inputs_(api, info, kInputCount) {
    if (!api.attribute(info, "activation", std::string()).empty()) {
      throw OpError("an embedding has no activation");
    }
  }

  void compute(abi::OrtKernelContext* context) const override {
    TensorView view[kInputCount];
    int64_t dims[kInputCount][TensorView::kMaxRank];
    inputs_.read(context, view, dims);
    EmbeddingCall call = {};
    call.w = attributes_.matrix(view[kWeight], view[kScales], view[kMins]);
    check_tensor("ids", view[kIds], abi::kInt64, {-1}, "[T]");
    call.ids = static_cast<const int64_t*>(view[kIds].data);
    const int64_t count = view[kIds].shape[0];
    for (int64_t i = 0; i < count; ++i) {
      if (call.ids[i] < 0 || call.ids[i] >= call.w.n) {
        throw OpError("ids[" + std::to_string(i) + "] = " + std::to_string(call.ids[i]) +
                      " is outside 0 .. " + std::to_string(call.w.n - 1));
      }
    }
    const int64_t shape[] = {count, call.w.k};
    call.rows = static_cast<float*>(api_.output(context, 0, shape, 2));
    const int64_t tasks = (count + kTaskRows - 1) / kTaskRows;
    team::run(static_cast<size_t>(tasks), [&](size_t index) {
      const int64_t first = static_cast<int64_t>(index) * kTaskRows;
      kernels_.embed(call, first, std::min(first + kTaskRows, count));
    });
  }

 private:
  Api api_;
  const LinearKernels& kernels_;
  PackedAttributes attributes_;
  NodeInputs inputs_;
};

}  // namespace

const OpEntry kPackedEmbeddingOp = {
    "PackedEmbedding",
    kInputCount,
    1,
    [](size_t i) -> int32_t { return i == kIds ? abi::kInt64 : abi::kAnyType; },
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t i) { return i >= kScales; },
    [](size_t) { return false; },
    [](const Api& api, const abi::OrtKernelInfo* info,
       const Tier& tier) -> std::unique_ptr<OpKernel> {
      return std::make_unique<PackedEmbedding>(api, info, *tier.linear);
    },
};

}  // namespace ortloom
