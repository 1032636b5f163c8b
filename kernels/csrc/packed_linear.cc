// ortloom::PackedLinear version 1 (kernels/packed_contract.py) as an ONNX Runtime kernel.

#include <algorithm>
#include <string>

#include "linear.h"
#include "linear_call.h"
#include "op.h"
#include "packed_matrix.h"
#include "scratch.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t { kX, kWeight, kScales, kMins, kBias, kInputCount };

// Multiply-adds below which a call stays on the calling thread, values of x below which it alone
// rounds them, and rows that a task keeps by it while it goes through the weights.
constexpr int64_t kInlineWork = 100'000;
constexpr int64_t kInlineValues = 16'384;
constexpr int64_t kTaskRows = 96;
// Tasks a thread gets, so that one that is held up does not hold up the others.
constexpr int64_t kTasksPerThread = 4;

class PackedLinear : public OpKernel {
 public:
  PackedLinear(const Api& api, const abi::OrtKernelInfo* info, const LinearKernels& kernels)
      : api_(api), kernels_(kernels), attributes_(api, info) {
    activation_ = activation_named(api.attribute(info, "activation", std::string()));
    if (activation_ != Activation::kNone && attributes_.n() % (2 * kPanel) != 0) {
      throw OpError("N = " + std::to_string(attributes_.n()) +
                    " must be a multiple of 32 with an activation (gate and up projection)");
    }
  }

  void compute(abi::OrtKernelContext* context) const override {
    TensorView view[kInputCount];
    int64_t dims[kInputCount][TensorView::kMaxRank];
    for (size_t i = 0; i < kInputCount; ++i) view[i] = api_.input(context, i, dims[i]);
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
    const bool quantised = is_quantised(call.w.format);
    call.tiles = ceil_div(call.rows, quantised ? kernels_.quantised_rows : kernels_.floating_rows);
    Carver carver;
    carve(&call, &carver);
    carver.lay_out(call_scratch().reserve(carver.size()));
    carve(&call, &carver);
    run(call);
  }

 private:
  void run(const LinearCall& call) const {
    const int64_t values = call.rows * call.w.k;
    if (is_quantised(call.w.format) || call.rows > 1) {
      const int64_t share = values <= kInlineValues ? call.tiles : ceil_div(call.tiles, values / (kInlineValues / 2));
      team::run(static_cast<size_t>(ceil_div(call.tiles, share)), [&](size_t index) {
        const int64_t first = static_cast<int64_t>(index) * share;
        kernels_.prepare(call, first, std::min(first + share, call.tiles));
      });
    }
    // Row chunks outside, groups of panels inside: a chunk of x stays near while the weights pass.
    const int64_t groups = groups_of(call);
    const int64_t chunks = std::min(call.tiles, ceil_div(call.rows, kTaskRows));
    const bool alone = values * call.w.n < kInlineWork;
    const int64_t wanted = alone ? 1 : ceil_div(team::threads() * kTasksPerThread, chunks);
    const int64_t share = ceil_div(groups, wanted);
    const int64_t parts = ceil_div(groups, share);
    team::run(static_cast<size_t>(chunks * parts), [&](size_t index) {
      const int64_t chunk = static_cast<int64_t>(index) / parts;
      const int64_t group = static_cast<int64_t>(index) % parts * share;
      const int64_t tile = call.tiles * chunk / chunks, end = call.tiles * (chunk + 1) / chunks;
      void* scratch = task_scratch().reserve(kernels_.task_bytes(call, tile, end));
      kernels_.task(call, tile, end, group, std::min(group + share, groups), scratch);
    });
  }

  Api api_;
  const LinearKernels& kernels_;
  PackedAttributes attributes_;
  Activation activation_ = Activation::kNone;
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
