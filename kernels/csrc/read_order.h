// Which weights a step reads after those of a node: learned from the step before.
#ifndef ORTLOOM_READ_ORDER_H_
#define ORTLOOM_READ_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "linear.h"
#include "read_ahead.h"

namespace ortloom {

// Rows up to which a call is bound by reading the weights, so that it pays to fetch them early.
constexpr int64_t kFetchRows = 2;

// The weights of a matrix in the order in which a task reads them.
struct MatrixRanges {
  Range ranges[3];
  explicit MatrixRanges(const PackedMatrix& w);
};

// A node's place in the order. Guesses only ever fetch too much or too little.
class ReadOrder {
 public:
  ReadOrder();
  // The node's weights are read now, these first; called once a step, before the reading.
  void enter(const MatrixRanges& first) const;
  // The node is done: idle threads may fetch what was read after it the last time.
  void leave() const;

 private:
  struct Follower;
  std::shared_ptr<Follower> follower_;
};

}  // namespace ortloom

#endif  // ORTLOOM_READ_ORDER_H_
