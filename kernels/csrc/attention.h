// What the ORT side hands to the attention kernels of one instruction set tier. Plain data only:
// the tiers are built with other compiler flags, so no inline library code may be shared with them.
#ifndef ORTLOOM_ATTENTION_H_
#define ORTLOOM_ATTENTION_H_

#include <cstddef>
#include <cstdint>

namespace ortloom {

// Keys are read in groups that never cross a pool block (block sizes are multiples of it), scored
// in tiles, and reduced in partitions. All three are aligned to absolute KV positions: the
// arithmetic of a query row depends on positions alone, never on what else is in the batch.
constexpr int kGroupKeys = 16;
constexpr int kTileKeys = 64;
constexpr int kPartitionKeys = 256;

constexpr int kMinHeadSize = 64, kMaxHeadSize = 256, kHeadSizeMultiple = 16;
constexpr int kMinBlockSize = 16, kMaxBlockSize = 256, kBlockSizeMultiple = 16;

// Element type of the pools. Int8 elements have a scale a token and KV head.
enum class PoolType : int32_t { kFloat32, kFloat16, kBFloat16, kInt8 };

// One call of the op. Shapes: T tokens, R requests, H heads, KH KV heads, D head size.
struct AttentionStep {
  const float* query;         // T rows of H*D
  const float* key;           // T rows of KH*D
  const float* value;         // T rows of KH*D
  void* key_cache;            // [num_blocks, block_size, KH, D], elements of type `pool`;
  void* value_cache;          // the order inside a block is the layout's (attention_pools.h)
  float* key_scale;           // [num_blocks, KH, block_size] or null
  float* value_scale;
  const int32_t* cu_seqlens;  // [R+1]
  const int32_t* past;        // [R]
  const int32_t* table;       // [R, table_width]
  const int32_t* slots;       // [T]
  const float* cos;           // [P, rotary_half] or null: no rotation
  const float* sin;           // [P, rotary_half]
  const float* sinks;         // [H] or null
  const float* q_norm;        // [D] or null
  const float* k_norm;        // [D] or null
  float* output;              // [T, H*D]
  int64_t heads, kv_heads, head_size, block_size, table_width;
  // Floats from a token to the next. Packed QKV has one stride, and key and value point into query.
  int64_t query_stride, key_stride, value_stride;
  int64_t rotary_half, rotary_offset;
  PoolType pool;
  bool head_major;
  bool rotary_interleaved, causal;
  int64_t window;  // tokens a query sees, itself included; 0 = all
  float scale, softcap, epsilon;
};

// `count` tokens of one request that share a task, from packed token `first` at position `position`.
struct QueryTile {
  int64_t request, first, count, position;
  int64_t kv_length;  // keys of the request after this step
  int64_t kv_head;
};

// What a thread is likely to read after a tile: another tile's partition. Null: not known.
struct Upcoming {
  const QueryTile* tile;
  int64_t partition;
};

struct AttentionKernels {
  // Query rows (tokens x heads of one KV head) of a task; a token's rows are never split.
  int64_t target_rows;
  // Floats of scratch that one task needs (64-byte aligned).
  size_t (*scratch_floats)(const AttentionStep& step, int64_t rows);
  // Normalises, rotates and writes tokens [begin, end) to their slots.
  void (*store)(const AttentionStep& step, int64_t begin, int64_t end);
  // All partitions of a tile, written to step.output.
  void (*attend)(const AttentionStep& step, const QueryTile& tile, Upcoming next, float* scratch);
  // One partition of a tile; `partial` gets rows x (maximum, sum, D sums), partial_floats() long.
  void (*attend_partition)(const AttentionStep& step, const QueryTile& tile, int64_t partition,
                           Upcoming next, float* scratch, float* partial);
  // Folds the partitions [first, last) of a tile, laid out one after the other, into step.output.
  void (*merge)(const AttentionStep& step, const QueryTile& tile, int64_t first, int64_t last,
                const float* partials, float* scratch);
};

// Floats of one partition's result. (static: every tier keeps a copy built with its own flags.)
static inline size_t partial_floats(const AttentionStep& step, int64_t rows) {
  return static_cast<size_t>(rows) * static_cast<size_t>(step.head_size + 2);
}

// Partitions [first, last) that some row of the tile may see.
struct PartitionRange {
  int64_t first, last;
};
static inline PartitionRange visible_partitions(const AttentionStep& step, const QueryTile& tile) {
  const int64_t end = step.causal ? tile.position + tile.count : tile.kv_length;
  int64_t begin = 0;
  if (step.window > 0 && tile.position - step.window + 1 > 0) {
    begin = tile.position - step.window + 1;
  }
  return {begin / kPartitionKeys, (end + kPartitionKeys - 1) / kPartitionKeys};
}

extern const AttentionKernels kPortableKernels;
extern const AttentionKernels kAvx2Kernels;
extern const AttentionKernels kAvx512Kernels;

}  // namespace ortloom

#endif  // ORTLOOM_ATTENTION_H_
