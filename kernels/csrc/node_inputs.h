// The inputs of a node as views; those that are constants of the graph are asked for once.
#ifndef ORTLOOM_NODE_INPUTS_H_
#define ORTLOOM_NODE_INPUTS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "ort_api.h"
#include "weight_map.h"

namespace ortloom {

// What ONNX Runtime keeps of an input lies in half a dozen places that the weights of the step
// before have pushed out of the caches, and a decoder layer has forty inputs: to ask for all of them
// at every call is a part of a small model's step that one can see. Constants are therefore kept
// here, side by side, and those that lie in a file are read through our map of it.
class NodeInputs {
 public:
  // Of a node with up to `count` inputs. Throws OpError.
  NodeInputs(const Api& api, const abi::OrtKernelInfo* info, size_t count);

  // All inputs of a call; `dims` keeps shapes and must live as long as the views. Throws OpError.
  void read(const abi::OrtKernelContext* context, TensorView* views,
            int64_t (*dims)[TensorView::kMaxRank]) const;

 private:
  Api api_;
  std::vector<TensorView> constants_;  // absent: no constant
  std::vector<int64_t> shapes_;        // of the constants, one behind the other
  std::vector<std::shared_ptr<const MappedFile>> files_;
};

}  // namespace ortloom

#endif  // ORTLOOM_NODE_INPUTS_H_
