#include "sampler_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ortloom {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

// How many tokens come no later than `last` in the order.
int64_t count_through(const SamplerKernels& kernels, const RowView& view, uint64_t last) {
  const float value = key_value(last);
  int64_t count = kernels.count(view, value);
  for (int64_t id = key_id(last) + 1; id < view.size; ++id) count -= view.at(id) == value;
  return count;
}

class Ranks {
 public:
  Ranks(const SamplerKernels& kernels, const RowView& view, const Kept& kept,
        const std::vector<uint64_t>& leading)
      : kernels_(kernels), view_(view), kept_(kept), leading_(leading), limit_(view.size) {
    if (!kept.all) limit_ = count_through(kernels, view, kept.last_key);
  }

  bool cut(int64_t id) const {
    return !kept_.all && order_key(view_.at(id), static_cast<uint32_t>(id)) > kept_.last_key;
  }

  // The leading tokens hold every tie of each of their values, so a search among them is enough for
  // values that are not below all of them.
  int64_t of(int64_t id) const {
    if (cut(id)) return view_.size;
    const float value = view_.at(id);
    int64_t count;
    if (!leading_.empty() && value >= key_value(leading_.back())) {
      const uint64_t last_tie = order_key(value, std::numeric_limits<uint32_t>::max());
      count = std::upper_bound(leading_.begin(), leading_.end(), last_tie) - leading_.begin();
    } else {
      count = kernels_.count(view_, value);
    }
    return std::min(count, limit_);
  }

 private:
  const SamplerKernels& kernels_;
  const RowView& view_;
  const Kept& kept_;
  const std::vector<uint64_t>& leading_;
  int64_t limit_;
};

}  // namespace

void describe(const SamplerKernels& kernels, const RowView& view, int64_t own, double offset,
              const Kept& kept, const OrtloomLogprobs& out, SampleScratch* scratch) {
  Selection selection(kernels, view, scratch);
  scratch->keys.clear();
  if (out.num_top > 0) selection.sorted_keys(selection.leading(out.num_top));
  const std::vector<uint64_t>& leading = scratch->keys;
  int64_t* id = out.ids;
  *id++ = own;
  const auto found = static_cast<size_t>(
      std::min(out.num_top, static_cast<int64_t>(leading.size())));
  for (size_t i = 0; i < found; ++i) *id++ = key_id(leading[i]);
  int64_t* const top_end = out.ids + 1 + out.num_top;
  for (int64_t i = 0; i < view.size && id < top_end; ++i) {  // masked tokens fill up, lowest first
    if (view.at(i) == kMasked) *id++ = i;
  }
  std::copy(out.extra, out.extra + out.num_extra, id);

  const Ranks ranks(kernels, view, kept, leading);
  const int64_t count = 1 + out.num_top + out.num_extra;
  for (int64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(view.at(out.ids[i])) - offset;
    out.values[i] = std::isfinite(value) && !ranks.cut(out.ids[i]) ? value : kCut;
    out.ranks[i] = ranks.of(out.ids[i]);
  }
}

int64_t list_kept(const SamplerKernels& kernels, const RowView& view, const Kept& kept,
                  int64_t* ids, int64_t room, SampleScratch* scratch) {
  const int64_t count = kept.all ? kernels.count(view, std::numeric_limits<float>::lowest())
                                 : count_through(kernels, view, kept.last_key);
  const int64_t listed = count == view.size ? 0 : std::min(count, room);
  if (listed > 0) {
    Selection selection(kernels, view, scratch);
    const std::vector<uint64_t>& keys = selection.sorted_keys(selection.leading(listed));
    for (int64_t i = 0; i < listed; ++i) ids[i] = key_id(keys[static_cast<size_t>(i)]);
  }
  return count;
}

}  // namespace ortloom
