#include "sampler_select.h"

#include <algorithm>
#include <functional>
#include <limits>

namespace ortloom {
namespace {

constexpr float kLowestFinite = std::numeric_limits<float>::lowest();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kSmall = 32;      // items that are sorted rather than split
constexpr size_t kRadixFrom = 4096;  // keys that are worth passes over 2048 counters

// One stable pass by 11 bits.
void radix_pass(const std::vector<uint64_t>& from, std::vector<uint64_t>* to, int shift) {
  size_t starts[2048] = {};
  for (const uint64_t key : from) ++starts[key >> shift & 2047];
  size_t sum = 0;
  for (size_t& start : starts) {
    const size_t count = start;
    start = sum;
    sum += count;
  }
  for (const uint64_t key : from) (*to)[starts[key >> shift & 2047]++] = key;
}

// The bucket of one scaled value, by the operations of the kernels.
int64_t bucket_of(float value, float top) {
  const float distance = value - top;
  const float x = distance > kBucketFloor ? distance : kBucketFloor;
  return std::min(static_cast<int64_t>(x * kBucketsPerUnit), kBuckets - 1);
}

}  // namespace

// Keys count up as values go down, and buckets never go down with them, so that halving the range
// of keys finds it.
float lowest_in(int64_t bucket, float top) {
  if (bucket >= kBuckets - 1) return kLowestFinite;
  uint64_t inside = order_key(top, 0) >> 32, outside = order_key(kLowestFinite, 0) >> 32;
  while (outside - inside > 1) {
    const uint64_t middle = (inside + outside) / 2;
    (bucket_of(key_value(middle << 32), top) <= bucket ? inside : outside) = middle;
  }
  return key_value(inside << 32);
}

void SampleScratch::reserve(int64_t vocab) {
  const auto size = static_cast<size_t>(vocab);
  const size_t blocks = (size + kSampleBlock - 1) / kSampleBlock;
  maxima.resize(blocks);
  values.resize(size);
  ids.resize(size);
  buckets.resize(kBuckets);
}

void sort_keys(std::vector<uint64_t>* keys, std::vector<uint64_t>* spare) {
  if (keys->size() < kRadixFrom) {
    std::sort(keys->begin(), keys->end());
    return;
  }
  spare->resize(keys->size());
  radix_pass(*keys, spare, 32);
  radix_pass(*spare, keys, 43);
  radix_pass(*keys, spare, 54);
  keys->swap(*spare);
}

int64_t Selection::leading(int64_t k) {
  const int64_t blocks = view_.blocks();
  if (k <= blocks) {
    // The k-th largest block maximum is a lower bound of the k-th largest value.
    std::vector<float>& bounds = scratch_.bounds;
    bounds.assign(view_.maxima, view_.maxima + blocks);
    std::nth_element(bounds.begin(), bounds.begin() + (k - 1), bounds.end(), std::greater<>());
    return at_least(bounds[static_cast<size_t>(k - 1)] * view_.inverse);
  }
  if (2 * k < view_.size) {
    kernels_.histogram(view_, true, 1, kLowestFinite, scratch_.buckets.data());
    double sum = 0;
    for (int64_t b = 0; b + 1 < kBuckets; ++b) {
      sum += scratch_.buckets[static_cast<size_t>(b)];
      if (sum >= static_cast<double>(k)) return at_least(lowest_in(b, view_.top));
    }
  }
  return at_least(kLowestFinite);
}

int64_t Selection::at_least(float lowest) {
  return kernels_.collect(view_, std::max(lowest, kLowestFinite), kInfinity, scratch_.ids.data(),
                          scratch_.values.data());
}

int64_t Selection::in_bucket(int64_t bucket) {
  const float limit = bucket == 0 ? kInfinity : lowest_in(bucket - 1, view_.top);
  return kernels_.collect(view_, lowest_in(bucket, view_.top), limit, scratch_.ids.data(),
                          scratch_.values.data());
}

const std::vector<uint64_t>& Selection::sorted_keys(int64_t count) {
  std::vector<uint64_t>& keys = scratch_.keys;
  keys.resize(static_cast<size_t>(count));
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = order_key(scratch_.values[i], scratch_.ids[i]);
  }
  sort_keys(&keys, &scratch_.more_keys);
  return keys;
}

std::vector<Item>& Selection::make_items(int64_t count) {
  const auto size = static_cast<size_t>(count);
  scratch_.masses.resize(size);
  kernels_.masses(scratch_.values.data(), count, view_.top, scratch_.masses.data());
  scratch_.items.resize(size);
  for (size_t i = 0; i < size; ++i) {
    scratch_.items[i] = {order_key(scratch_.values[i], scratch_.ids[i]), scratch_.masses[i]};
  }
  return scratch_.items;
}

Crossing find_crossing(Item* begin, Item* end, double before, double goal, bool strict) {
  const auto crosses = [goal, strict](double sum) { return strict ? sum > goal : sum >= goal; };
  const auto earlier = [](const Item& a, const Item& b) { return a.key < b.key; };
  while (end - begin > kSmall) {
    Item* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, earlier);
    double sum = before;
    for (const Item* item = begin; item != middle; ++item) sum += item->mass;
    if (crosses(sum)) {
      end = middle;
    } else {
      before = sum;
      begin = middle;
    }
  }
  std::sort(begin, end, earlier);
  for (; begin != end; ++begin) {
    before += begin->mass;
    if (crosses(before)) return {true, begin->key, before};
  }
  return {};
}

}  // namespace ortloom
