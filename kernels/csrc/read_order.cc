#include "read_order.h"

#include <iterator>
#include <mutex>
#include <optional>

#include "team.h"

namespace ortloom {

struct ReadOrder::Follower {
  std::optional<MatrixRanges> first;  // guarded by `mutex`
};

namespace {

std::mutex mutex;

size_t weight_bytes(const PackedMatrix& w) {
  const size_t values = static_cast<size_t>(panels_of(w) * kPanel * w.k);
  switch (w.format) {
    case Format::kU4: return values / 2;
    case Format::kU8: return values;
    case Format::kF32: return values * 4;
    default: return values * 2;
  }
}

}  // namespace

MatrixRanges::MatrixRanges(const PackedMatrix& w) : ranges{} {
  if (is_quantised(w.format)) {
    const size_t blocks = static_cast<size_t>(panels_of(w) * kPanel * (w.k / w.block_size));
    const size_t bytes = blocks * (w.half_scales ? 2 : 4);
    ranges[0] = {w.scales, bytes};
    ranges[1] = {w.mins, w.mins == nullptr ? 0 : bytes};
  }
  ranges[2] = {w.weight, weight_bytes(w)};
}

ReadOrder::ReadOrder() : follower_(std::make_shared<Follower>()) {}

void ReadOrder::enter(const MatrixRanges& first) const {
  // The node that ran last in this process, whichever session it belongs to.
  static std::shared_ptr<Follower> last;
  const std::lock_guard<std::mutex> lock(mutex);
  if (last != nullptr) last->first = first;
  last = follower_;
}

void ReadOrder::leave() const {
  std::optional<MatrixRanges> next;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    next = follower_->first;
  }
  if (next) team::fetch_when_idle(next->ranges, std::size(next->ranges));
}

}  // namespace ortloom
