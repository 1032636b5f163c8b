// ortloom::PackedLinear version 1 (kernels/packed_contract.py) as an ONNX Runtime kernel.

#include "linear.h"
#include "linear_plan.h"
#include "node_inputs.h"
#include "op.h"
#include "packed_matrix.h"
#include "read_order.h"
#include "scratch.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t { kX, kWeight, kScales, kMins, kBias, kInputCount };

class PackedLinear : public OpKernel {
 public:
  PackedLinear(const Api& api, const abi::OrtKernelInfo* info, const LinearKernels& kernels)
      : api_(api), kernels_(kernels), attributes_(api, info),
        activation_(activation_of(api, info, attributes_)), inputs_(api, info, kInputCount) {}

  void compute(abi::OrtKernelContext* context) const override {
    TensorView view[kInputCount];
    int64_t dims[kInputCount][TensorView::kMaxRank];
    inputs_.read(context, view, dims);
    LinearCall call = {};
    call.w = attributes_.matrix(view[kWeight], view[kScales], view[kMins]);
    check_tensor("x", view[kX], abi::kFloat, {-1, attributes_.k()}, "[T, K]");
    if (view[kBias].present()) {
      check_tensor("bias", view[kBias], abi::kFloat, {attributes_.n()}, "[N]");
      call.bias = static_cast<const float*>(view[kBias].data);
    }
    call.activation = activation_;
    call.x = static_cast<const float*>(view[kX].data);
    call.rows = view[kX].shape[0];
    const int64_t width = activation_ == Activation::kNone ? call.w.n : call.w.n / 2;
    const int64_t shape[] = {call.rows, width};
    call.y = static_cast<float*>(api_.output(context, 0, shape, 2));
    if (call.rows == 0) return;
    LinearPlan plan(kernels_, call);
    Carver carver;
    plan.carve(&carver);
    carver.lay_out(call_scratch().reserve(carver.size()));
    plan.carve(&carver);
    const bool fetch = call.rows <= kFetchRows;
    if (fetch) order_.enter(MatrixRanges(call.w));
    team::run(plan.prepare_tasks(), [&](size_t index) { plan.prepare(index); });
    team::run(plan.tasks(), [&](size_t index) { plan.task(index); });
    if (fetch) order_.leave();
  }

 private:
  Api api_;
  const LinearKernels& kernels_;
  PackedAttributes attributes_;
  Activation activation_;
  NodeInputs inputs_;
  ReadOrder order_;
};

}  // namespace

const OpEntry kPackedLinearOp = {
    "PackedLinear",
    kInputCount,
    1,
    [](size_t i) -> int32_t {
      return i == kWeight || i == kScales || i == kMins ? abi::kAnyType : abi::kFloat;
    },
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t i) { return i >= kScales; },
    [](size_t) { return false; },
    [](const Api& api, const abi::OrtKernelInfo* info,
       const Tier& tier) -> std::unique_ptr<OpKernel> {
      return std::make_unique<PackedLinear>(api, info, *tier.linear);
    },
};

}  // namespace ortloom
