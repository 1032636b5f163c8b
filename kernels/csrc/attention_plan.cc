#include "attention_plan.h"

#include "scratch.h"
#include "team.h"

namespace ortloom {
namespace {

// Multiply-adds below which a call is small, and tokens that one store task takes. A wake-up costs
// as much as the inline work it would save.
constexpr int64_t kInlineWork = 200'000;
constexpr int64_t kStoreTokens = 4;
// Query rows up to which a tile waits for memory more than it computes.
constexpr int64_t kFewRows = 16;
// A tile with more than 1/16 of the call's work is split by partition.
constexpr int64_t kSplitShare = 16;

int64_t tile_work(const AttentionStep& step, const QueryTile& tile) {
  const PartitionRange range = visible_partitions(step, tile);
  int64_t keys = (range.last - range.first) * kPartitionKeys;
  if (keys > tile.kv_length) keys = tile.kv_length;
  return tile.count * (step.heads / step.kv_heads) * keys * step.head_size * 2;
}

float* scratch_of(size_t floats) {
  return static_cast<float*>(task_scratch().reserve(floats * sizeof(float)));
}

}  // namespace

AttentionPlan::AttentionPlan(const AttentionKernels& kernels, const AttentionStep& step,
                             const StepSizes& sizes)
    : kernels_(&kernels), step_(step), tokens_(sizes.tokens) {
  stores_ = static_cast<size_t>((tokens_ + kStoreTokens - 1) / kStoreTokens);
  cut_tokens(sizes);
  cut_tiles();
}

void AttentionPlan::cut_tokens(const StepSizes& sizes) {
  const int64_t group = step_.heads / step_.kv_heads;
  const int64_t rows = kernels_->target_rows;
  const int64_t tile_tokens = rows / group > 0 ? rows / group : 1;
  scratch_floats_ = kernels_->scratch_floats(step_, tile_tokens * group);
  for (int64_t r = 0; r < sizes.requests; ++r) {
    const int64_t begin = step_.cu_seqlens[r], end = step_.cu_seqlens[r + 1];
    const int64_t past = step_.past[r];
    for (int64_t first = begin; first < end; first += tile_tokens) {
      const int64_t count = end - first < tile_tokens ? end - first : tile_tokens;
      for (int64_t h = 0; h < step_.kv_heads; ++h) {
        tiles_.push_back({r, first, count, past + (first - begin), past + (end - begin), h});
        work_ += tile_work(step_, tiles_.back());
      }
    }
  }
}

void AttentionPlan::cut_tiles() {
  const int64_t group = step_.heads / step_.kv_heads;
  // The KV heads of a token tile are neighbours in `tiles_` and equal in work. Split ones go
  // partition by partition, so that neighbouring tasks read neighbouring memory.
  size_t partial = 0;
  const size_t neighbours = static_cast<size_t>(step_.kv_heads);
  // A few rows only wait for memory. A pool block holds all heads: read by one thread it comes in
  // as one stream, by several each fetches ahead into what is the others'.
  const size_t enough = 2 * static_cast<size_t>(team::threads());
  const bool many_tiles = tiles_.size() / neighbours >= enough;
  // From the end: later tokens of a prompt see more keys, and the smallest task should be the last.
  for (size_t i = tiles_.size(); i > 0;) {
    i -= neighbours;
    const QueryTile& tile = tiles_[i];
    const PartitionRange range = visible_partitions(step_, tile);
    const size_t parts = static_cast<size_t>(range.last - range.first);
    const bool few_rows = tile.count * group <= kFewRows;
    const bool split =
        !is_small() && parts > 1 && tile_work(step_, tile) * kSplitShare > work_;
    if (!split) {
      const size_t together = few_rows && many_tiles ? neighbours : 1;
      for (size_t h = 0; h < neighbours; h += together) {
        tasks_.push_back({i + h, together, -1, 0, 0});
      }
      continue;
    }
    const size_t floats = partial_floats(step_, tile.count * group);
    for (size_t p = 0; p < parts; ++p) {
      const size_t together = few_rows && parts >= enough ? neighbours : 1;
      for (size_t h = 0; h < neighbours; h += together) {
        tasks_.push_back({i + h, together, range.first + static_cast<int64_t>(p),
                          partial + (h * parts + p) * floats, parts * floats});
      }
    }
    for (size_t h = 0; h < neighbours; ++h) {
      splits_.push_back({i + h, range, partial + h * parts * floats});
    }
    partial += neighbours * parts * floats;
  }
  partials_.resize(partial);
}

bool AttentionPlan::is_small() const { return work_ < kInlineWork; }

void AttentionPlan::store(size_t index) const {
  const int64_t begin = static_cast<int64_t>(index) * kStoreTokens;
  const int64_t end = begin + kStoreTokens;
  kernels_->store(step_, begin, end < tokens_ ? end : tokens_);
}

// The task's next tile or, when threads take their turns, the first tile of the thread's next task.
Upcoming AttentionPlan::after(size_t index, size_t i) const {
  const Task* task = &tasks_[index];
  if (++i == task->tiles) {
    index += static_cast<size_t>(team::threads());
    if (index >= tasks_.size()) return {nullptr, 0};
    task = &tasks_[index];
    i = 0;
  }
  const QueryTile& tile = tiles_[task->tile + i];
  const int64_t partition =
      task->partition < 0 ? visible_partitions(step_, tile).first : task->partition;
  return {&tile, partition};
}

void AttentionPlan::task(size_t index) {
  const Task& task = tasks_[index];
  float* scratch = scratch_of(scratch_floats_);
  for (size_t i = 0; i < task.tiles; ++i) {
    const QueryTile& tile = tiles_[task.tile + i];
    const Upcoming next = after(index, i);
    if (task.partition < 0) {
      kernels_->attend(step_, tile, next, scratch);
    } else {
      float* partial = partials_.data() + task.partial + i * task.stride;
      kernels_->attend_partition(step_, tile, task.partition, next, scratch, partial);
    }
  }
}

void AttentionPlan::merge(size_t index) const {
  const SplitTile& split = splits_[index];
  kernels_->merge(step_, tiles_[split.tile], split.range.first, split.range.last,
                  partials_.data() + split.partial, scratch_of(scratch_floats_));
}

}  // namespace ortloom
