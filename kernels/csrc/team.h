// The one thread team of the process. Ops share their work out here and never through ONNX
// Runtime's own pool, so that there is one set of threads and one place that spins.
#ifndef ORTLOOM_TEAM_H_
#define ORTLOOM_TEAM_H_

#include <cstddef>

#include "read_ahead.h"

namespace ortloom::team {

constexpr int kMaxThreads = 256;
constexpr int kMaxSpinMicroseconds = 1'000'000;

// Sets how many threads take part in a region (the caller counts as one) and how long an idle
// worker spins after its last region before it sleeps. Until the first call there is one thread:
// everything runs inline. Workers are started by the first region that has use for them. Waits for
// a region that is running. Returns null, or what is wrong with the arguments.
const char* configure(int threads, int spin_microseconds);

// Threads a region may use.
int threads();

// Calls task(user, i) for every i in 0 .. tasks - 1, in no fixed order, and returns after the last
// one. Runs inline where the team has one thread, is busy with another session's region, or the
// caller is itself inside a region. A task must not throw; if one does all the same, the region is
// finished and the failure is thrown here: std::bad_alloc for itself, OpError for anything else.
void run(size_t tasks, void (*task)(void* user, size_t index), void* user);

// The same for a callable of one index.
template <class Body>
void run(size_t tasks, const Body& body) {
  run(
      tasks, [](void* user, size_t index) { (*static_cast<const Body*>(user))(index); },
      const_cast<Body*>(&body));
}

// A step of a longer piece of work: its tasks begin when all of the step before are done.
struct Phase {
  size_t tasks;
  void (*task)(void* user, size_t index);
  void* user;
  ReadAhead* upcoming = nullptr;  // what threads fetch that have nothing left to do in this step
};
constexpr size_t kMaxPhases = 24;

// Runs up to kMaxPhases phases in order as one region: the team is called once, and from phase to
// phase its threads only wait for one another's last tasks. The rules are those of run().
void run_phases(const Phase* phases, size_t count);

// What idle threads fetch from now on until it is there, for as long as they spin.
void fetch_when_idle(const Range* ranges, size_t count);

}  // namespace ortloom::team

#endif  // ORTLOOM_TEAM_H_
