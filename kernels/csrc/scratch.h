// Memory that a thread keeps from call to call, aligned for the widest vectors.
#ifndef ORTLOOM_SCRATCH_H_
#define ORTLOOM_SCRATCH_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace ortloom {

class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(data_); }

  // At least `bytes`, uninitialised, 64-byte aligned; throws std::bad_alloc. What an earlier call
  // gave is no longer valid.
  void* reserve(size_t bytes) {
    if (bytes > size_) {
      std::free(data_);
      data_ = nullptr;
      size_ = 0;
      const size_t rounded = (bytes + 63) / 64 * 64;
      data_ = std::aligned_alloc(64, rounded);
      if (data_ == nullptr) throw std::bad_alloc();
      size_ = rounded;
    }
    return data_;
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Carves 64-byte aligned arrays out of one allocation: first measured, then laid out.
class Carver {
 public:
  template <class T>
  void add(T** place, int64_t count) {
    if (base_ != nullptr) *place = reinterpret_cast<T*>(base_ + size_);
    size_ += (static_cast<size_t>(count) * sizeof(T) + 63) / 64 * 64;
  }
  size_t size() const { return size_; }
  void lay_out(void* base) {
    base_ = static_cast<unsigned char*>(base);
    size_ = 0;
  }

 private:
  unsigned char* base_ = nullptr;
  size_t size_ = 0;
};

// For the task a thread works on; a task has no other task of the library below it.
inline Scratch& task_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

// For what the tasks of a call share; belongs to the thread that makes the call.
inline Scratch& call_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

}  // namespace ortloom

#endif  // ORTLOOM_SCRATCH_H_
