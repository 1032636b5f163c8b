#include "sampler_draw.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace ortloom {
namespace {

constexpr int64_t kHead = 64;  // leading tokens tried before the whole row is looked at
constexpr int64_t kSampled = 16;  // blocks of which one is looked at for a first guess

bool earlier(const Item& a, const Item& b) { return a.key < b.key; }

// Crossings in a row that no cut has made short: among the leading tokens, then among more of them,
// then in the one bucket of the histogram in which the sum crosses.
class WholeRow {
 public:
  WholeRow(const SamplerKernels& kernels, const RowView& view, double total,
           SampleScratch* scratch)
      : kernels_(kernels),
        view_(view),
        scratch_(*scratch),
        selection_(kernels, view, scratch),
        total_(total) {
    lead(std::min(kHead, view.blocks()));
  }

  Crossing find(double goal, bool strict) {
    const auto crosses = [goal, strict](double sum) { return strict ? sum > goal : sum >= goal; };
    if (!spread_ && !crosses(lead_mass_)) lead((view_.blocks() + 1) / 2);
    std::vector<Item>& items = scratch_.items;
    if (!spread_ && crosses(lead_mass_)) {
      return find_crossing(items.data(), items.data() + items.size(), 0, goal, strict);
    }
    if (!spread_) spread(goal);
    Crossing crossing = find_in_buckets(goal, strict);
    if (!crossing.found && complete_from_ > std::numeric_limits<float>::lowest()) {
      fill(std::numeric_limits<float>::lowest());
      crossing = find_in_buckets(goal, strict);
    }
    return crossing;
  }

 private:
  void lead(int64_t count) {
    if (count <= lead_) return;
    lead_ = count;
    lead_mass_ = 0;
    for (const Item& item : selection_.make_items(selection_.leading(count))) {
      lead_mass_ += item.mass;
    }
  }

  void fill(float lowest) {
    complete_from_ = lowest;
    kernels_.histogram(view_, false, 1, lowest, scratch_.buckets.data());
  }

  // Fills the buckets as far down as one block in 16 says the goal needs, and then half way to the
  // whole mass, since the blocks may mislead; `find` fills them further if they do.
  void spread(double goal) {
    spread_ = true;
    std::vector<double>& buckets = scratch_.buckets;
    kernels_.histogram(view_, false, kSampled, std::numeric_limits<float>::lowest(),
                       buckets.data());
    double sampled = 0, sum = 0;
    for (const double mass : buckets) sampled += mass;
    const double enough = sampled * (goal / total_ + 1) / 2;
    int64_t last = 0;
    while (last < kBuckets - 1 && (sum += buckets[static_cast<size_t>(last)]) < enough) ++last;
    fill(lowest_in(last, view_.top));
  }

  Crossing find_in_buckets(double goal, bool strict) {
    double before = 0;
    for (int64_t b = 0; b < kBuckets; ++b) {
      const double sum = before + scratch_.buckets[static_cast<size_t>(b)];
      if (strict ? sum > goal : sum >= goal) {
        if (lowest_in(b, view_.top) < complete_from_) break;
        std::vector<Item>& items = selection_.make_items(selection_.in_bucket(b));
        return find_crossing(items.data(), items.data() + items.size(), before, goal, strict);
      }
      before = sum;
    }
    return {};
  }

  const SamplerKernels& kernels_;
  const RowView& view_;
  SampleScratch& scratch_;
  Selection selection_;
  const double total_;
  float complete_from_ = 0;  // buckets down to this value hold all of theirs
  int64_t lead_ = 0;       // at least so many leading tokens are the items ...
  double lead_mass_ = 0;   // ... and have this mass
  bool spread_ = false;    // the buckets are filled, and the items are others
};

// The random number's place in the mass; a product that rounds up to the whole mass means the last
// token that has any.
template <class Find>
Crossing pick(double random, double total, Find find) {
  const Crossing crossing = find(random * total, true);
  return crossing.found ? crossing : find(total, false);
}

Draw draw_from_list(Selection* selection, int64_t count, double random, const RowView& view,
                    const OrtloomSampleRow& row) {
  std::vector<Item>& items = selection->make_items(count);
  if (row.top_k > 0 && count > row.top_k) {
    std::nth_element(items.begin(), items.begin() + row.top_k, items.end(), earlier);
    items.resize(static_cast<size_t>(row.top_k));
  }
  const auto floor = static_cast<float>(view.top + static_cast<float>(row.log_min_p));
  items.erase(std::remove_if(items.begin(), items.end(),
                             [floor](const Item& item) { return !(key_value(item.key) >= floor); }),
              items.end());
  double total = 0;
  for (const Item& item : items) total += item.mass;
  const auto find = [&items](double goal, bool strict) {
    return find_crossing(items.data(), items.data() + items.size(), 0, goal, strict);
  };
  Kept kept{false, std::max_element(items.begin(), items.end(), earlier)->key};
  if (row.top_p < 1.0) {
    const Crossing cut = find(row.top_p * total, false);
    kept.last_key = cut.key;
    total = cut.through;
  }
  const Crossing drawn = pick(random, total, find);
  return {key_id(drawn.key), kept, static_cast<double>(view.top) + std::log(total)};
}

}  // namespace

double philox_uniform(uint64_t seed, uint32_t sample_index, uint32_t position) {
  uint32_t c0 = position, c1 = static_cast<uint32_t>(seed >> 32), c2 = 0, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = sample_index;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0;
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return (static_cast<double>(c0 >> 5) * 67108864.0 + static_cast<double>(c1 >> 6)) /
         9007199254740992.0;
}

double log_normaliser(const SamplerKernels& kernels, const RowView& view) {
  return static_cast<double>(view.top) + std::log(kernels.mass(view));
}

Draw draw_token(const SamplerKernels& kernels, const RowView& view, const OrtloomSampleRow& row,
                SampleScratch* scratch) {
  const double random =
      philox_uniform(row.seed, static_cast<uint32_t>(row.sample_index),
                     static_cast<uint32_t>(row.position));
  Selection selection(kernels, view, scratch);
  if (row.top_k > 0 && row.top_k < view.size) {
    return draw_from_list(&selection, selection.leading(row.top_k), random, view, row);
  }
  if (row.log_min_p > -std::numeric_limits<double>::infinity()) {
    const auto floor = static_cast<float>(view.top + static_cast<float>(row.log_min_p));
    return draw_from_list(&selection, selection.at_least(floor), random, view, row);
  }
  double total = kernels.mass(view);
  WholeRow whole(kernels, view, total, scratch);
  const auto find = [&whole](double goal, bool strict) { return whole.find(goal, strict); };
  Kept kept;
  if (row.top_p < 1.0) {
    const Crossing cut = find(row.top_p * total, false);
    kept = {false, cut.key};
    total = cut.through;
  }
  const Crossing drawn = pick(random, total, find);
  return {key_id(drawn.key), kept, static_cast<double>(view.top) + std::log(total)};
}

}  // namespace ortloom
