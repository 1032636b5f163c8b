// ortloom::SkipRMSNorm version 1 (kernels/norm_contract.py) as an ONNX Runtime kernel.

#include <algorithm>
#include <cmath>
#include <string>

#include "linear.h"
#include "op.h"
#include "packed_matrix.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t { kX, kSkip, kGamma, kInputCount };
enum Output : size_t { kY, kSum, kOutputCount };

// Values a task takes; fewer than twice as many stay on the calling thread.
constexpr int64_t kTaskValues = 16'384;

class SkipRmsNorm : public OpKernel {
 public:
  SkipRmsNorm(const Api& api, const abi::OrtKernelInfo* info, const LinearKernels& kernels)
      : api_(api), kernels_(kernels), epsilon_(api.attribute(info, "epsilon", 1e-6f)) {
    if (!std::isfinite(epsilon_) || epsilon_ < 0.0f) {
      throw OpError("epsilon must be finite and not negative");
    }
  }

  void compute(abi::OrtKernelContext* context) const override {
    TensorView view[kInputCount];
    int64_t dims[kInputCount][TensorView::kMaxRank];
    for (size_t i = 0; i < kInputCount; ++i) view[i] = api_.input(context, i, dims[i]);
    check_tensor("x", view[kX], abi::kFloat, {-1, -1}, "[T, D]");
    const int64_t rows = view[kX].shape[0], width = view[kX].shape[1];
    if (width < 1) throw OpError("x has shape " + shape_text(view[kX]) + ": D must be at least 1");
    check_tensor("gamma", view[kGamma], abi::kFloat, {width}, "[D]");
    NormCall call = {};
    call.x = static_cast<const float*>(view[kX].data);
    call.gamma = static_cast<const float*>(view[kGamma].data);
    if (view[kSkip].present()) {
      check_tensor("skip", view[kSkip], abi::kFloat, {rows, width}, "[T, D]");
      call.skip = static_cast<const float*>(view[kSkip].data);
    }
    call.width = width;
    call.epsilon = epsilon_;
    const int64_t shape[] = {rows, width};
    call.y = static_cast<float*>(api_.output(context, kY, shape, 2));
    if (api_.output_count(context) > kSum) {
      call.sum = static_cast<float*>(api_.output(context, kSum, shape, 2));
    }
    const int64_t share = std::max<int64_t>(1, kTaskValues / width);
    const int64_t tasks = rows < 2 * share ? (rows > 0) : (rows + share - 1) / share;
    const int64_t step = tasks > 1 ? share : rows;
    team::run(static_cast<size_t>(tasks), [&](size_t index) {
      const int64_t first = static_cast<int64_t>(index) * step;
      kernels_.norm(call, first, std::min(first + step, rows));
    });
  }

 private:
  Api api_;
  const LinearKernels& kernels_;
  float epsilon_;
};

}  // namespace

const OpEntry kSkipRmsNormOp = {
    "SkipRMSNorm",
    kInputCount,
    kOutputCount,
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t i) { return i == kSkip; },
    [](size_t i) { return i == kSum; },
    [](const Api& api, const abi::OrtKernelInfo* info,
       const Tier& tier) -> std::unique_ptr<OpKernel> {
      return std::make_unique<SkipRmsNorm>(api, info, *tier.linear);
    },
};

}  // namespace ortloom
