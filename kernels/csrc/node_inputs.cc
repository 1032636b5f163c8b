#include "node_inputs.h"

#include <cstdint>

namespace ortloom {

NodeInputs::NodeInputs(const Api& api, const abi::OrtKernelInfo* info, size_t count)
    : api_(api), constants_(count) {
  int64_t dims[TensorView::kMaxRank];
  for (size_t i = 0; i < count; ++i) {
    constants_[i] = api.constant_input(info, i, dims);
    if (constants_[i].present()) {
      shapes_.insert(shapes_.end(), constants_[i].shape, constants_[i].shape + constants_[i].rank);
    }
  }
  const int64_t* shape = shapes_.data();
  for (TensorView& constant : constants_) {
    if (!constant.present()) continue;
    constant.shape = shape;
    shape += constant.rank;
  }
  files_ = read_through_own_map(constants_.data(), count);
}

void NodeInputs::read(const abi::OrtKernelContext* context, TensorView* views,
                      int64_t (*dims)[TensorView::kMaxRank]) const {
  for (size_t i = 0; i < constants_.size(); ++i) {
    views[i] = constants_[i].present() ? constants_[i] : api_.input(context, i, dims[i]);
  }
}

}  // namespace ortloom
