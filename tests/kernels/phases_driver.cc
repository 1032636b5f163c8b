// Runs phases on the library's team and writes what it saw, a line for each fact. The first
// argument says what to do, the second how many threads the team has.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ort_api.h"
#include "team.h"

namespace {

using ortloom::team::kMaxPhases;
using ortloom::team::Phase;

// Times a task that lingers looks whether a later phase has begun.
constexpr int kLooks = 50;

// One region under watch: every task notes when it runs, and looks at the phases around its own.
class Watched {
 public:
  Watched(const std::vector<size_t>& sizes, int failing)
      : sizes_(sizes), begun_(sizes.size()), done_(sizes.size()), places_(sizes.size()),
        failing_(failing) {
    for (size_t p = 0; p < sizes.size(); ++p) {
      runs_.emplace_back(new std::atomic<int>[sizes[p] + 1]());
      places_[p] = {this, p};
      phases_.push_back({sizes[p], &Watched::enter, &places_[p]});
    }
  }

  const Phase* phases() const { return phases_.data(); }
  size_t count() const { return phases_.size(); }
  long overlaps() const { return overlaps_; }

  // Tasks that ran another number of times than once.
  long wrong_runs() const {
    long wrong = 0;
    for (size_t p = 0; p < sizes_.size(); ++p) {
      for (size_t i = 0; i < sizes_[p]; ++i) wrong += runs_[p][i] != 1;
    }
    return wrong;
  }

 private:
  struct Place {
    Watched* watched;
    size_t phase;
  };

  static void enter(void* user, size_t index) {
    const Place& place = *static_cast<const Place*>(user);
    place.watched->task(place.phase, index);
  }

  void task(size_t phase, size_t index) {
    ++runs_[phase][index];
    ++begun_[phase];
    for (size_t p = 0; p < phase; ++p) overlaps_ += done_[p] != sizes_[p];
    if (index == 0) {
      for (int look = 0; look < kLooks && !later_begun(phase); ++look) std::this_thread::yield();
    }
    overlaps_ += later_begun(phase);
    ++done_[phase];
    if (failing_ == 0 || (phase + index) % 3 != 0) return;
    if (failing_ == 1) throw std::bad_alloc();
    throw std::runtime_error("a test's own failure");
  }

  bool later_begun(size_t phase) const {
    for (size_t p = phase + 1; p < begun_.size(); ++p) {
      if (begun_[p] != 0) return true;
    }
    return false;
  }

  std::vector<size_t> sizes_;
  std::vector<std::atomic<size_t>> begun_, done_;
  std::vector<std::unique_ptr<std::atomic<int>[]>> runs_;
  std::vector<Place> places_;
  std::vector<Phase> phases_;
  std::atomic<long> overlaps_{0};
  int failing_;
};

struct Totals {
  std::atomic<long> regions{0}, overlaps{0}, wrong_runs{0}, memory{0}, other{0};

  void run(const std::vector<size_t>& sizes, int failing = 0) {
    Watched watched(sizes, failing);
    try {
      ortloom::team::run_phases(watched.phases(), watched.count());
    } catch (const std::bad_alloc&) {
      ++memory;
    } catch (const ortloom::OpError&) {
      ++other;
    }
    ++regions;
    overlaps += watched.overlaps();
    wrong_runs += watched.wrong_runs();
  }

  void write() const {
    std::printf("regions %ld\noverlaps %ld\nwrong runs %ld\nbad_alloc %ld\nOpError %ld\n",
                regions.load(), overlaps.load(), wrong_runs.load(), memory.load(), other.load());
  }
};

std::vector<size_t> drawn(std::mt19937* random, size_t most_tasks) {
  std::vector<size_t> sizes((*random)() % kMaxPhases + 1);
  for (size_t& size : sizes) size = (*random)() % (most_tasks + 1);
  return sizes;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 3) return 2;
  const char* what = arguments[1];
  const char* refusal = ortloom::team::configure(std::atoi(arguments[2]), 20);
  if (refusal != nullptr) return 3;
  std::mt19937 random(7);
  Totals totals;
  if (std::strcmp(what, "drawn") == 0) {
    for (int i = 0; i < 60; ++i) totals.run(drawn(&random, 20));
  } else if (std::strcmp(what, "few tasks") == 0) {
    for (int i = 0; i < 60; ++i) totals.run(drawn(&random, 2));
    totals.run({});
    totals.run({0, 0, 0});
  } else if (std::strcmp(what, "failing") == 0) {
    for (int i = 0; i < 20; ++i) {
      for (const int failing : {1, 0, 2}) totals.run({4, 1, 0, 7}, failing);
    }
  } else if (std::strcmp(what, "several callers") == 0) {
    std::vector<std::thread> callers;
    for (int c = 0; c < 3; ++c) {
      callers.emplace_back([&totals, c] {
        std::mt19937 own(static_cast<unsigned>(c));
        for (int i = 0; i < 20; ++i) totals.run(drawn(&own, 9));
      });
    }
    for (std::thread& caller : callers) caller.join();
  } else if (std::strcmp(what, "too many phases") == 0) {
    totals.run(std::vector<size_t>(kMaxPhases, 2));
    totals.write();
    try {
      const Phase none[kMaxPhases + 1] = {};
      ortloom::team::run_phases(none, kMaxPhases + 1);
    } catch (const ortloom::OpError& error) {
      std::printf("refused %s\n", error.what());
    }
    return 0;
  } else {
    return 4;
  }
  totals.write();
  return 0;
}
