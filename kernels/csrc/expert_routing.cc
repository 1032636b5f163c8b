// ortloom::ExpertRouting version 1 (kernels/experts_contract.py) as an ONNX Runtime kernel.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "op.h"
#include "packed_matrix.h"
#include "scratch.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t { kLogits, kInputCount };
enum Output : size_t { kIds, kWeights, kOutputCount };

constexpr int64_t kTaskRows = 64;

// What a logit is compared by: one that is no number comes last.
float rank_of(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// The `count` largest of `experts` logits in descending order; of equal ones the lower id first.
void choose(const float* logits, int64_t experts, int64_t count, int64_t* ids) {
  int64_t held = 0;
  for (int64_t e = 0; e < experts; ++e) {
    const float rank = rank_of(logits[e]);
    int64_t place = held;
    while (place > 0 && rank > rank_of(logits[ids[place - 1]])) --place;
    if (place == count) continue;
    if (held < count) ++held;
    for (int64_t i = held - 1; i > place; --i) ids[i] = ids[i - 1];
    ids[place] = e;
  }
}

class ExpertRouting : public OpKernel {
 public:
  ExpertRouting(const Api& api, const abi::OrtKernelInfo* info)
      : api_(api), count_(api.attribute(info, "top_k", int64_t{0})) {
    if (count_ < 1) throw OpError("top_k = " + std::to_string(count_) + " must be at least 1");
    const int64_t normalise = api.attribute(info, "normalize", int64_t{0});
    if (normalise != 0 && normalise != 1) {
      throw OpError("normalize = " + std::to_string(normalise) + " must be 0 or 1");
    }
    normalise_ = normalise == 1;
  }

  void compute(abi::OrtKernelContext* context) const override {
    int64_t dims[TensorView::kMaxRank];
    const TensorView logits = api_.input(context, kLogits, dims);
    check_tensor("logits", logits, abi::kFloat, {-1, -1}, "[T, E]");
    const int64_t rows = logits.shape[0], experts = logits.shape[1];
    if (experts < count_) {
      throw OpError("logits has shape " + shape_text(logits) + ", but top_k = " +
                    std::to_string(count_) + " experts are chosen");
    }
    const int64_t shape[] = {rows, count_};
    auto* ids = static_cast<int64_t*>(api_.output(context, kIds, shape, 2));
    auto* weights = static_cast<float*>(api_.output(context, kWeights, shape, 2));
    const auto* x = static_cast<const float*>(logits.data);
    team::run(static_cast<size_t>((rows + kTaskRows - 1) / kTaskRows), [&](size_t index) {
      const int64_t first = static_cast<int64_t>(index) * kTaskRows;
      for (int64_t t = first; t < std::min(first + kTaskRows, rows); ++t) {
        route(x + t * experts, experts, ids + t * count_, weights + t * count_);
      }
    });
  }

 private:
  void route(const float* logits, int64_t experts, int64_t* ids, float* weights) const {
    choose(logits, experts, count_, ids);
    const double largest = logits[ids[0]];
    double* powers = static_cast<double*>(
        task_scratch().reserve(static_cast<size_t>(count_) * sizeof(double)));
    for (int64_t i = 0; i < count_; ++i) powers[i] = std::exp(logits[ids[i]] - largest);
    double total = 0.0;
    if (normalise_) {
      for (int64_t i = 0; i < count_; ++i) total += powers[i];
      // A logit that is no number was not chosen, but its softmax is none either.
      for (int64_t e = 0; e < experts; ++e) {
        if (std::isnan(logits[e])) total = logits[e];
      }
    } else {
      for (int64_t e = 0; e < experts; ++e) total += std::exp(logits[e] - largest);
    }
    for (int64_t i = 0; i < count_; ++i) weights[i] = static_cast<float>(powers[i] / total);
  }

  Api api_;
  int64_t count_;
  bool normalise_ = false;
};

}  // namespace

const OpEntry kExpertRoutingOp = {
    "ExpertRouting",
    kInputCount,
    kOutputCount,
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t i) -> int32_t { return i == kIds ? abi::kInt64 : abi::kFloat; },
    [](size_t) { return false; },
    [](size_t) { return false; },
    [](const Api& api, const abi::OrtKernelInfo* info,
       const Tier&) -> std::unique_ptr<OpKernel> {
      return std::make_unique<ExpertRouting>(api, info);
    },
};

}  // namespace ortloom
