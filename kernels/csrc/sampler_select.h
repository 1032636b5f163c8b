// Finding tokens in their order without sorting the vocabulary.
//
// The order is descending value, ties by lower id. A key holds both: its upper half falls as the
// value rises (the two zeros are one value), its lower half is the id.
#ifndef ORTLOOM_SAMPLER_SELECT_H_
#define ORTLOOM_SAMPLER_SELECT_H_

#include <cstdint>
#include <cstring>
#include <vector>

#include "sampler.h"

namespace ortloom {

inline uint64_t order_key(float value, uint32_t id) {
  const float zeroed = value + 0.0f;
  uint32_t bits;
  std::memcpy(&bits, &zeroed, sizeof(bits));
  const uint32_t high = (bits >> 31) != 0 ? bits : bits ^ 0x7fffffffu;
  return static_cast<uint64_t>(high) << 32 | id;
}

inline int64_t key_id(uint64_t key) { return static_cast<int64_t>(key & 0xffffffffu); }

inline float key_value(uint64_t key) {
  const auto high = static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (high >> 31) != 0 ? high : high ^ 0x7fffffffu;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// A token and its share of the mass.
struct Item {
  uint64_t key;
  double mass;
};

// Memory for one row after another; grows to the vocabulary once.
struct SampleScratch {
  std::vector<float> row, maxima, raw_maxima, bounds, values;
  std::vector<uint32_t> ids;
  std::vector<uint64_t> keys, more_keys;
  std::vector<Item> items;
  std::vector<double> masses, buckets;

  void reserve(int64_t vocab);
};

// Sorts by ascending key; the keys' ids ascend already.
void sort_keys(std::vector<uint64_t>* keys, std::vector<uint64_t>* spare);

// The tokens of a row, found on demand.
class Selection {
 public:
  Selection(const SamplerKernels& kernels, const RowView& view, SampleScratch* scratch)
      : kernels_(kernels), view_(view), scratch_(*scratch) {}

  // Fills ids and values of the scratch with at least the first k tokens of the order, by ascending
  // id, never one at -inf and with all ties of the last one; fewer only if fewer are above -inf.
  // Gives their number.
  int64_t leading(int64_t k);

  // The same for all tokens whose value is at least `lowest`.
  int64_t at_least(float lowest);

  // The same for the tokens above -inf in one bucket.
  int64_t in_bucket(int64_t bucket);

  // Turns the first `count` ids and values into keys, in order.
  const std::vector<uint64_t>& sorted_keys(int64_t count);

  // Turns them into items, in no order.
  std::vector<Item>& make_items(int64_t count);

 private:
  const SamplerKernels& kernels_;
  const RowView& view_;
  SampleScratch& scratch_;
};

// The smallest scaled value in buckets 0 .. `bucket` of a row with that top.
float lowest_in(int64_t bucket, float top);

// Where a running sum crosses a goal.
struct Crossing {
  bool found = false;
  uint64_t key = 0;
  double through = 0;  // the sum up to and including that token
};

// The first token, in order, at which `before` plus the running mass of the items reaches `goal`,
// or goes above it if `strict`. Reorders the items.
Crossing find_crossing(Item* begin, Item* end, double before, double goal, bool strict);

}  // namespace ortloom

#endif  // ORTLOOM_SAMPLER_SELECT_H_
