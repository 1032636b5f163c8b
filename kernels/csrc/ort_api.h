// A typed face over the slots of ort_abi.h, and the exception that carries an error to the callback
// boundary, where it becomes an OrtStatus.
#ifndef ORTLOOM_ORT_API_H_
#define ORTLOOM_ORT_API_H_

#include <stdexcept>
#include <string>

#include "ort_abi.h"

namespace ortloom {

class OpError : public std::runtime_error {
 public:
  explicit OpError(const std::string& text, abi::ErrorCode code = abi::kInvalidArgument)
      : std::runtime_error(text), code_(code) {}
  abi::ErrorCode code() const { return code_; }

 private:
  abi::ErrorCode code_;
};

// A tensor as the op sees it; `shape` points into `Dimensions` or into ORT's own storage.
struct TensorView {
  void* data = nullptr;
  int32_t type = 0;
  const int64_t* shape = nullptr;
  size_t rank = 0;

  bool present() const { return rank != kAbsent; }
  static constexpr size_t kAbsent = static_cast<size_t>(-1);
  static constexpr size_t kMaxRank = 8;
};

class Api {
 public:
  // Throws OpError if this ONNX Runtime is older than API version 18.
  explicit Api(const abi::OrtApiBase* base);
  // For kernels: the table ORT hands to create_v2, plus what the version string allows.
  Api(const abi::OrtApi* table, bool has_shape_reference)
      : table_(table), has_shape_reference_(has_shape_reference) {}

  const abi::OrtApi* table() const { return table_; }
  bool has_shape_reference() const { return has_shape_reference_; }

  abi::OrtStatus* status(abi::ErrorCode code, const char* text) const;
  // Throws OpError if `status` is an error; releases it either way.
  void check(abi::OrtStatus* status, const char* what) const;
  // True and released if ok, false and released if an error.
  bool ok(abi::OrtStatus* status) const;

  TensorView input(const abi::OrtKernelContext* context, size_t index, int64_t* dims) const;
  // The same for kernels that are being made: an input that is a constant of the graph, and absent
  // where it is none. It stays as it is while the kernel lives.
  TensorView constant_input(const abi::OrtKernelInfo* info, size_t index, int64_t* dims) const;
  void* output(abi::OrtKernelContext* context, size_t index, const int64_t* shape,
               size_t rank) const;
  // Outputs of the node, optional ones that it leaves out at its end not counted.
  size_t output_count(const abi::OrtKernelContext* context) const;

  // An attribute, or `fallback` where the node has none; a wrong type is an OpError.
  float attribute(const abi::OrtKernelInfo* info, const char* name, float fallback) const;
  int64_t attribute(const abi::OrtKernelInfo* info, const char* name, int64_t fallback) const;
  std::string attribute(const abi::OrtKernelInfo* info, const char* name,
                        const std::string& fallback) const;
  bool has_attribute(const abi::OrtKernelInfo* info, const char* name) const;

 private:
  TensorView view(const abi::OrtValue* value, int64_t* dims) const;
  bool read(const abi::OrtKernelInfo* info, const char* name, float* value) const;
  bool read(const abi::OrtKernelInfo* info, const char* name, int64_t* value) const;
  bool read(const abi::OrtKernelInfo* info, const char* name, std::string* value) const;

  const abi::OrtApi* table_ = nullptr;
  bool has_shape_reference_ = false;
};

}  // namespace ortloom

#endif  // ORTLOOM_ORT_API_H_
