#include "linear_plan.h"

#include <algorithm>

#include "linear_call.h"
#include "team.h"

namespace ortloom {
namespace {

// Multiply-adds below which a call is one task, values of x below which one task prepares them all,
// and rows that a task keeps by it while it goes through the weights.
constexpr int64_t kInlineWork = 100'000;
constexpr int64_t kInlineValues = 16'384;
constexpr int64_t kTaskRows = 96;
// Tasks a thread gets, so that one that is held up does not hold up the others: more of them where
// each is still long against what it costs to claim it.
constexpr int64_t kTasksPerThread = 4, kMostTasksPerThread = 12;
constexpr int64_t kLongTask = 1'000'000;  // multiply-adds

}  // namespace

LinearPlan::LinearPlan(const LinearKernels& kernels, const LinearCall& call)
    : kernels_(&kernels), call_(call) {
  const bool quantised = is_quantised(call_.w.format);
  call_.tiles = ceil_div(call_.rows, quantised ? kernels.quantised_rows : kernels.floating_rows);
  const int64_t values = call_.rows * call_.w.k;
  if (quantised || (kernels.packs_rows && call_.rows > 1)) {
    prepare_share_ = values <= kInlineValues
                         ? call_.tiles
                         : ceil_div(call_.tiles, values / (kInlineValues / 2));
    prepare_tasks_ = static_cast<size_t>(ceil_div(call_.tiles, prepare_share_));
  }
  // Row chunks outside, groups of panels inside: a chunk of x stays near while the weights pass.
  groups_ = groups_of(call_);
  chunks_ = std::min(call_.tiles, ceil_div(call_.rows, kTaskRows));
  const int64_t work = values * call_.w.n, threads = team::threads();
  const int64_t each = std::min(std::max(work / (threads * kLongTask), kTasksPerThread),
                                kMostTasksPerThread);
  const int64_t wanted = work < kInlineWork ? 1 : ceil_div(threads * each, chunks_);
  group_share_ = ceil_div(groups_, wanted);
  parts_ = ceil_div(groups_, group_share_);
}

void LinearPlan::carve(Carver* carver) { ortloom::carve(*kernels_, &call_, carver); }

void LinearPlan::prepare(size_t index) const {
  const int64_t first = static_cast<int64_t>(index) * prepare_share_;
  kernels_->prepare(call_, first, std::min(first + prepare_share_, call_.tiles));
}

void LinearPlan::task(size_t index) const {
  const int64_t chunk = static_cast<int64_t>(index) / parts_;
  const int64_t group = static_cast<int64_t>(index) % parts_ * group_share_;
  const int64_t tile = call_.tiles * chunk / chunks_;
  const int64_t end = call_.tiles * (chunk + 1) / chunks_;
  void* scratch = task_scratch().reserve(kernels_->task_bytes(call_, tile, end));
  kernels_->task(call_, tile, end, group, std::min(group + group_share_, groups_), scratch);
}

}  // namespace ortloom
