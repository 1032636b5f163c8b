// The attributes and weight inputs that PackedLinear and PackedEmbedding share
// (kernels/packed_contract.py), checked.
#ifndef ORTLOOM_PACKED_MATRIX_H_
#define ORTLOOM_PACKED_MATRIX_H_

#include <string>

#include "linear.h"
#include "ort_api.h"

namespace ortloom {

// "[3, 64]"; what an error text says of a tensor.
std::string shape_text(const TensorView& view);

// Throws OpError unless the tensor has this type and shape; -1 in `shape` stands for any size.
// `rule` says what the sizes are: "[T, K]".
void check_tensor(const char* name, const TensorView& view, int32_t type,
                  std::initializer_list<int64_t> shape, const char* rule);

// The attributes of a node; they decide the types and shapes of its weight inputs.
class PackedAttributes {
 public:
  // `prefix` comes before each attribute's name where a node has several matrices. Throws OpError.
  PackedAttributes(const Api& api, const abi::OrtKernelInfo* info, const std::string& prefix = "");
  // The same from values; `prefix` is for the error texts. Throws OpError.
  PackedAttributes(const std::string& format, int64_t n, int64_t k, int64_t block_size,
                   const std::string& prefix = "");

  Format format() const { return format_; }
  int64_t n() const { return n_; }
  int64_t k() const { return k_; }

  // Checks type, shape and alignment of the weight inputs; throws OpError.
  PackedMatrix matrix(const TensorView& weight, const TensorView& scales,
                      const TensorView& mins) const;

 private:
  int32_t block_type(const char* name, const TensorView& view) const;

  Format format_ = Format::kF32;
  std::string format_name_;
  int64_t n_, k_, block_size_;
};

// The `activation` of a node whose matrix is a gate and an up projection; throws OpError.
Activation activation_of(const Api& api, const abi::OrtKernelInfo* info,
                         const PackedAttributes& attributes, const char* prefix = "");

}  // namespace ortloom

#endif  // ORTLOOM_PACKED_MATRIX_H_
