#include "team.h"

#include <pthread.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "ort_api.h"

namespace ortloom::team {
namespace {

using Clock = std::chrono::steady_clock;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

// What is left of the region, in one word, so that claiming a task and learning whether there is
// one is a single fetch_add: generation (24 bits), tasks (20), next task (20). A late worker that
// adds to the word of a finished region learns that nothing is left, and the next region's store
// wipes its trace.
constexpr int kIndexBits = 20;
constexpr uint64_t kIndexMask = (uint64_t{1} << kIndexBits) - 1;
constexpr uint64_t kGenerationMask = (uint64_t{1} << 24) - 1;
// Every worker may add to `next` once after the last task.
constexpr size_t kMaxTasks = kIndexMask - 2 * kMaxThreads;

uint64_t next_of(uint64_t ticket) { return ticket & kIndexMask; }
uint64_t total_of(uint64_t ticket) { return ticket >> kIndexBits & kIndexMask; }
uint64_t generation_of(uint64_t ticket) { return ticket >> (2 * kIndexBits); }
bool has_task(uint64_t ticket) { return next_of(ticket) < total_of(ticket); }

// A waiting leader spins this often before it offers its core to whoever holds the last task.
constexpr int kLeaderSpins = 4000;

thread_local bool inside_region = false;

class Team {
 public:
  Team(int threads, int spin) : threads_(threads), spin_(spin) {}

  int threads() const { return threads_.load(std::memory_order_relaxed); }
  ReadAhead& upcoming() { return upcoming_; }
  int spin() const { return spin_.load(std::memory_order_relaxed); }

  void configure(int threads, int spin) {
    while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
    stop_workers();
    threads_ = threads;
    spin_ = spin;
    busy_.store(false, std::memory_order_release);
  }

  // For exit and unload: waits for a region that is running, later ones run inline.
  void close() {
    const Clock::time_point limit = Clock::now() + std::chrono::seconds(2);
    while (busy_.exchange(true, std::memory_order_acquire) && Clock::now() < limit) {
      std::this_thread::yield();
    }
    threads_ = 1;
    stop_workers();
    busy_.store(false, std::memory_order_release);
  }

  bool try_run(size_t tasks, void (*task)(void*, size_t), void* user) {
    if (inside_region || threads() == 1 || busy_.exchange(true, std::memory_order_acquire)) {
      return false;
    }
    if (workers_.size() + 1 < static_cast<size_t>(threads())) start_workers();
    inside_region = true;
    for (size_t begin = 0; begin < tasks; begin += kMaxTasks) {
      region(begin, tasks - begin < kMaxTasks ? tasks - begin : kMaxTasks, task, user);
    }
    inside_region = false;
    const int failure = failure_.exchange(kNone, std::memory_order_relaxed);
    busy_.store(false, std::memory_order_release);
    raise(failure);
    return true;
  }

  enum Failure : int { kNone, kMemory, kOther };

  static int attempt(void (*task)(void*, size_t), void* user, size_t index) {
    try {
      task(user, index);
      return kNone;
    } catch (const std::bad_alloc&) {
      return kMemory;
    } catch (...) {
      return kOther;
    }
  }

  static void raise(int failure) {
    if (failure == kMemory) throw std::bad_alloc();
    if (failure == kOther) throw OpError("a parallel task failed", abi::kFail);
  }

 private:
  void region(size_t begin, size_t tasks, void (*task)(void*, size_t), void* user) {
    task_ = task;
    user_ = user;
    begin_ = begin;
    completed_.store(0, std::memory_order_relaxed);
    generation_ = (generation_ + 1) & kGenerationMask;
    // Sequentially consistent against a worker's parked_ and re-check of ticket_: one of the two
    // sees the other.
    ticket_.store(generation_ << (2 * kIndexBits) | tasks << kIndexBits);
    const int asleep = parked_.load();
    if (asleep > 0) wake(tasks - 1 < static_cast<size_t>(asleep) ? tasks - 1 : asleep);
    help();
    for (int spins = 0; completed_.load(std::memory_order_acquire) < tasks;) {
      if (spins < kLeaderSpins) {
        ++spins;
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }

  void wake(size_t count) {
    // Empty on purpose: a worker between its check and its sleep holds the mutex.
    { const std::lock_guard<std::mutex> lock(mutex_); }
    for (size_t i = 0; i < count; ++i) sleepers_.notify_one();
  }

  // Works on the region until nothing is left to claim.
  void help() {
    while (has_task(ticket_.load(std::memory_order_acquire))) {
      const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
      if (!has_task(ticket)) return;
      // The region cannot end before this task has been counted, so its fields stay as they are.
      const int failure = attempt(task_, user_, begin_ + next_of(ticket));
      if (failure != kNone) failure_.store(failure, std::memory_order_relaxed);
      completed_.fetch_add(1, std::memory_order_release);
    }
  }

  void work() {
    inside_region = true;
    uint64_t seen = generation_of(ticket_.load());
    Clock::time_point active = Clock::now();
    const std::chrono::microseconds patience(spin());
    help();  // a region may have begun while this thread was being made
    for (;;) {
      const uint64_t now = generation_of(ticket_.load(std::memory_order_acquire));
      if (now != seen) {
        seen = now;
        help();
        active = Clock::now();
        continue;
      }
      if (stop_.load(std::memory_order_acquire)) return;
      if (upcoming_.fetch()) continue;
      for (int i = 0; i < 4; ++i) pause();
      if (Clock::now() - active < patience) continue;
      std::unique_lock<std::mutex> lock(mutex_);
      parked_.fetch_add(1);
      sleepers_.wait(lock, [&] { return stop_.load() || generation_of(ticket_.load()) != seen; });
      parked_.fetch_sub(1);
    }
  }

  void start_workers() {
    // The system may refuse a thread: the region is then shared by those there are.
    try {
      workers_.reserve(static_cast<size_t>(threads() - 1));
      while (workers_.size() + 1 < static_cast<size_t>(threads())) {
        workers_.emplace_back([this] { work(); });
      }
    } catch (const std::system_error&) {
      threads_ = static_cast<int>(workers_.size()) + 1;
    }
  }

  void stop_workers() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_.store(true);
    }
    sleepers_.notify_all();
    for (std::thread& worker : workers_) worker.join();
    workers_.clear();
    stop_.store(false);
  }

  std::atomic<int> threads_, spin_;
  std::atomic<bool> busy_{false};
  std::vector<std::thread> workers_;
  uint64_t generation_ = 0;
  std::atomic<int> failure_{kNone};
  std::mutex mutex_;
  std::condition_variable sleepers_;
  std::atomic<bool> stop_{false};
  ReadAhead upcoming_;
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint64_t> completed_{0};
  alignas(64) std::atomic<int> parked_{0};
  void (*task_)(void*, size_t) = nullptr;
  void* user_ = nullptr;
  size_t begin_ = 0;
};

// Never freed: a thread may still be inside a run while the process exits.
std::atomic<Team*> current{nullptr};

// The workers do not exist in a forked child, and whatever they or a region held stays held: the
// child begins with a team of its own.
void renew_after_fork() {
  const Team* old = current.load(std::memory_order_relaxed);
  current.store(new (std::nothrow) Team(old->threads(), old->spin()), std::memory_order_relaxed);
  inside_region = false;
}

Team* team() {
  static std::once_flag once;
  Team* made = current.load(std::memory_order_acquire);
  if (made != nullptr) return made;
  std::call_once(once, [] {
    current.store(new Team(1, 0), std::memory_order_release);
    pthread_atfork(nullptr, nullptr, renew_after_fork);
  });
  return current.load(std::memory_order_acquire);
}

struct Closer {
  ~Closer() {
    Team* made = current.load();
    if (made != nullptr) made->close();
  }
};
Closer closer;

// The tasks of a phase are cut into ranges of neighbours. A thread takes those of its own range one
// after the other, so that it reads weights as one stream, and then helps with the others'.
constexpr size_t kMostRanges = 4;

// How far the tasks of a phase are claimed, range by range, and done; each on a line of its own.
struct PhaseProgress {
  struct alignas(64) Count {
    std::atomic<size_t> value{0};
  };
  Count claimed[kMostRanges], done;
};

// One thread's part in all phases. It waits only for tasks that a running thread has claimed, so
// any number of members, one after the other as well, comes to the end.
int take_part(const Phase* phases, size_t count, size_t member, size_t ranges,
              PhaseProgress* progress) {
  int failure = Team::kNone;
  for (size_t p = 0; p < count; ++p) {
    const Phase& phase = phases[p];
    for (size_t i = 0; i < ranges; ++i) {
      const size_t range = (member + i) % ranges;
      const size_t begin = phase.tasks * range / ranges, end = phase.tasks * (range + 1) / ranges;
      std::atomic<size_t>& claimed = progress[p].claimed[range].value;
      // A look first: of a range that is done, the line stays shared.
      while (claimed.load(std::memory_order_relaxed) < end - begin) {
        const size_t index = begin + claimed.fetch_add(1, std::memory_order_relaxed);
        if (index >= end) break;
        const int mine = Team::attempt(phase.task, phase.user, index);
        if (mine != Team::kNone) failure = mine;
        progress[p].done.value.fetch_add(1, std::memory_order_release);
      }
    }
    for (int spins = 0; progress[p].done.value.load(std::memory_order_acquire) < phase.tasks;) {
      if (phase.upcoming != nullptr && phase.upcoming->fetch()) continue;
      if (spins < kLeaderSpins) {
        ++spins;
        pause();
      } else {
        std::this_thread::yield();
      }
    }
  }
  return failure;
}

}  // namespace

const char* configure(int threads, int spin_microseconds) {
  if (threads < 1 || threads > kMaxThreads) return "the team needs 1 to 256 threads";
  if (spin_microseconds < 0 || spin_microseconds > kMaxSpinMicroseconds) {
    return "the spin time must be 0 to 1000000 microseconds";
  }
  if (inside_region) return "the team cannot be configured from one of its own tasks";
  Team* made = team();
  if (made == nullptr) return "out of memory";
  made->configure(threads, spin_microseconds);
  return nullptr;
}

int threads() {
  const Team* made = team();
  return made != nullptr ? made->threads() : 1;
}

void run(size_t tasks, void (*task)(void* user, size_t index), void* user) {
  if (tasks > 1) {
    Team* made = team();
    if (made != nullptr && made->try_run(tasks, task, user)) return;
  }
  int failure = Team::kNone;
  for (size_t i = 0; i < tasks; ++i) {
    const int mine = Team::attempt(task, user, i);
    if (mine != Team::kNone) failure = mine;
  }
  Team::raise(failure);
}

void run_phases(const Phase* phases, size_t count) {
  if (count > kMaxPhases) throw OpError("a region has too many phases", abi::kFail);
  PhaseProgress progress[kMaxPhases];
  std::atomic<int> failure{Team::kNone};
  const size_t members = static_cast<size_t>(threads());
  const size_t ranges = members < kMostRanges ? members : kMostRanges;
  run(members, [&](size_t member) {
    const int mine = take_part(phases, count, member, ranges, progress);
    if (mine != Team::kNone) failure.store(mine, std::memory_order_relaxed);
  });
  Team::raise(failure.load(std::memory_order_relaxed));
}

void fetch_when_idle(const Range* ranges, size_t count) {
  Team* made = team();
  if (made != nullptr && made->threads() > 1) made->upcoming().set(ranges, count);
}

}  // namespace ortloom::team
