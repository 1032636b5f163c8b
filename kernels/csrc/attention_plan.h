// One call of paged attention cut into tasks: first those that store the new tokens, then, when all
// of these are done, those that attend, then those that merge what was split.
#ifndef ORTLOOM_ATTENTION_PLAN_H_
#define ORTLOOM_ATTENTION_PLAN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention.h"
#include "step_checks.h"

namespace ortloom {

// Which tasks there are depends on the batch; what a task computes for a row does not.
class AttentionPlan {
 public:
  AttentionPlan(const AttentionKernels& kernels, const AttentionStep& step,
                const StepSizes& sizes);

  size_t store_tasks() const { return stores_; }
  void store(size_t index) const;
  size_t tasks() const { return tasks_.size(); }
  void task(size_t index);
  size_t merge_tasks() const { return splits_.size(); }
  void merge(size_t index) const;
  // So little work that waking another thread for it costs more than it saves.
  bool is_small() const;

 private:
  struct Task {
    size_t tile;
    size_t tiles;       // so many neighbours: KV heads of one token tile
    int64_t partition;  // -1: all of the tile's partitions
    size_t partial;     // where its result goes, in floats
    size_t stride;      // floats from a tile's result to the next one's
  };
  struct SplitTile {
    size_t tile;
    PartitionRange range;
    size_t partial;
  };

  void cut_tokens(const StepSizes& sizes);
  void cut_tiles();
  Upcoming after(size_t index, size_t tile) const;

  const AttentionKernels* kernels_;
  AttentionStep step_;
  int64_t tokens_;
  size_t stores_ = 0, scratch_floats_ = 0;
  std::vector<QueryTile> tiles_;
  std::vector<Task> tasks_;
  std::vector<SplitTile> splits_;
  std::vector<float> partials_;
  int64_t work_ = 0;
};

}  // namespace ortloom

#endif  // ORTLOOM_ATTENTION_PLAN_H_
