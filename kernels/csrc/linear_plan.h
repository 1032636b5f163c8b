// One packed linear cut into tasks: first those that prepare the rows, then, when all of these are
// done, those that multiply. Who runs them is the caller's business.
#ifndef ORTLOOM_LINEAR_PLAN_H_
#define ORTLOOM_LINEAR_PLAN_H_

#include <cstddef>
#include <cstdint>

#include "linear.h"
#include "scratch.h"

namespace ortloom {

class LinearPlan {
 public:
  // `call` needs w, bias, activation, x, y and rows (at least 1); the rest is filled in here.
  LinearPlan(const LinearKernels& kernels, const LinearCall& call);

  // Adds what the tasks share; once to measure, once more on memory.
  void carve(Carver* carver);

  size_t prepare_tasks() const { return prepare_tasks_; }
  void prepare(size_t index) const;
  size_t tasks() const { return static_cast<size_t>(chunks_ * parts_); }
  void task(size_t index) const;

 private:
  const LinearKernels* kernels_;
  LinearCall call_;
  int64_t prepare_share_ = 0, groups_ = 0, group_share_ = 0, chunks_ = 0, parts_ = 0;
  size_t prepare_tasks_ = 0;
};

}  // namespace ortloom

#endif  // ORTLOOM_LINEAR_PLAN_H_
