// Weights that are read soon. One row of activations is bound by how fast memory gives the weights,
// yet while a thread waits for another one, or for the next node, nobody reads any: so it asks for
// those that come next, and they are in the caches when they are wanted.
#ifndef ORTLOOM_READ_AHEAD_H_
#define ORTLOOM_READ_AHEAD_H_

#include <atomic>
#include <cstddef>

namespace ortloom {

struct Range {
  const void* data;
  size_t bytes;
};

// A few ranges that waiting threads fetch together, piece by piece. Asking for memory that is gone
// does nothing, so what a range points to need not outlive it.
class ReadAhead {
 public:
  static constexpr size_t kMaxRanges = 4;
  // More would push out of the caches what was fetched first.
  static constexpr size_t kMostBytes = size_t{512} << 10;

  ReadAhead() = default;
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Begins anew; threads may be inside fetch(). Empty ranges are left out.
  void set(const Range* ranges, size_t count) {
    left_.store(0, std::memory_order_relaxed);
    size_t used = 0, total = 0;
    for (size_t i = 0; i < count && used < kMaxRanges; ++i) {
      const size_t pieces = (ranges[i].bytes + kPiece - 1) / kPiece;
      if (pieces == 0 || total >= kMostBytes / kPiece) continue;
      begin_[used].store(static_cast<const char*>(ranges[i].data), std::memory_order_relaxed);
      total += pieces;
      end_[used++].store(total, std::memory_order_relaxed);
    }
    for (; used < kMaxRanges; ++used) end_[used].store(total, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    left_.store(total < kMostBytes / kPiece ? total : kMostBytes / kPiece,
                std::memory_order_release);
  }

  // Asks for the next piece; false if there is none.
  bool fetch() {
    const size_t total = left_.load(std::memory_order_acquire);
    if (next_.load(std::memory_order_relaxed) >= total) return false;
    const size_t piece = next_.fetch_add(1, std::memory_order_relaxed);
    if (piece >= total) return false;
    size_t first = 0;
    for (size_t i = 0; i < kMaxRanges; ++i) {
      const size_t end = end_[i].load(std::memory_order_relaxed);
      if (piece < end) {
        const char* data = begin_[i].load(std::memory_order_relaxed) + (piece - first) * kPiece;
        for (size_t line = 0; line < kPiece; line += kLine) __builtin_prefetch(data + line, 0, 2);
        return true;
      }
      first = end;
    }
    return false;
  }

 private:
  static constexpr size_t kLine = 64, kPiece = 4 * kLine;

  std::atomic<const char*> begin_[kMaxRanges] = {};
  std::atomic<size_t> end_[kMaxRanges] = {};  // in pieces, of all ranges up to this one
  std::atomic<size_t> left_{0};
  alignas(64) std::atomic<size_t> next_{0};
};

}  // namespace ortloom

#endif  // ORTLOOM_READ_AHEAD_H_
