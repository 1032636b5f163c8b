// The rows of a task: their scratch, and which keys they see.
// Included after a vec_*.h; internal linkage for the reason given in attention_body.h.
#ifndef ORTLOOM_ATTENTION_ROWS_H_
#define ORTLOOM_ATTENTION_ROWS_H_

#include "attention_pools.h"

namespace {

// Scratch of a task, carved from one allocation. Rows are tokens x query heads of the KV head.
struct Workspace {
  float* keys;      // [4, D, 16] keys of a tile as floats, transposed
  float* values;    // [64, D] values of a tile as floats
  float* query;     // [rows, D] prepared queries
  float* weights;   // [rows, 64] scores, then softmax weights
  float* decay;     // [rows] factor for the earlier sums
  float* maximum;   // [rows] of the current partition, in log2 units
  float* sum;       // [rows]
  float* sums;      // [rows, D]
  float* total_maximum;  // the same, folded over partitions
  float* total_sum;
  float* total_sums;
};

int64_t group_heads(const AttentionStep& step) { return step.heads / step.kv_heads; }

// Absolute keys [low, high) that a token at `position` sees.
struct KeyRange {
  int64_t low, high;
};
KeyRange visible_keys(const AttentionStep& step, const QueryTile& tile, int64_t position) {
  const int64_t high = step.causal ? position + 1 : tile.kv_length;
  const int64_t low = step.window > 0 ? larger(0, position - step.window + 1) : 0;
  return {low, high};
}

// Absolute keys that some token of the tile sees; those of its tokens do not fall.
KeyRange visible_keys(const AttentionStep& step, const QueryTile& tile) {
  return {visible_keys(step, tile, tile.position).low,
          visible_keys(step, tile, tile.position + tile.count - 1).high};
}

// Places [low, high) of a tile that a token sees.
struct Places {
  int low, high;
};
inline Places visible_places(const AttentionStep& step, const QueryTile& tile, int64_t position,
                             int64_t base) {
  const KeyRange range = visible_keys(step, tile, position);
  return {static_cast<int>(larger(range.low - base, 0)),
          static_cast<int>(smaller(range.high - base, kTileKeys))};
}

template <class P>
bool sees_any(const Tile<P>& rows, Places seen) {
  for (int g = 0; g < kGroupsPerTile; ++g) {
    const int first = g * kGroupKeys;
    if (seen.low < first + kGroupKeys && seen.high > first && rows.mapped[g]) return true;
  }
  return false;
}

template <class P>
bool sees_all(const Tile<P>& rows, Places seen) {
  bool all = seen.low == 0 && seen.high == kTileKeys;
  for (int g = 0; g < kGroupsPerTile; ++g) all = all && rows.mapped[g];
  return all;
}

}  // namespace

#endif  // ORTLOOM_ATTENTION_ROWS_H_
