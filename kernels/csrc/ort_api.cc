#include "ort_api.h"

#include <cstdlib>

namespace ortloom {
namespace {

using abi::Slot;
using abi::slot;

// "1.24.0" and newer carry slot 414.
bool version_at_least(const char* text, long major, long minor) {
  char* end = nullptr;
  const long got_major = std::strtol(text, &end, 10);
  if (end == text || *end != '.') return false;
  const long got_minor = std::strtol(end + 1, nullptr, 10);
  return got_major > major || (got_major == major && got_minor >= minor);
}

}  // namespace

Api::Api(const abi::OrtApiBase* base) : table_(base->GetApi(abi::kApiVersion)) {
  if (table_ == nullptr) {
    throw OpError(std::string("onnxruntime ") + base->GetVersionString() +
                      " is too old: its API version 18 (1.18) is needed",
                  abi::kFail);
  }
  has_shape_reference_ = version_at_least(base->GetVersionString(), 1, 24);
}

abi::OrtStatus* Api::status(abi::ErrorCode code, const char* text) const {
  using Function = abi::OrtStatus* (*)(int32_t, const char*);
  return slot<Function>(table_, Slot::kCreateStatus)(code, text);
}

bool Api::ok(abi::OrtStatus* status) const {
  if (status == nullptr) return true;
  slot<void (*)(abi::OrtStatus*)>(table_, Slot::kReleaseStatus)(status);
  return false;
}

void Api::check(abi::OrtStatus* status, const char* what) const {
  if (!ok(status)) throw OpError(std::string("onnxruntime refused ") + what, abi::kFail);
}

TensorView Api::input(const abi::OrtKernelContext* context, size_t index, int64_t* dims) const {
  const abi::OrtValue* value = nullptr;
  using GetInput =
      abi::OrtStatus* (*)(const abi::OrtKernelContext*, size_t, const abi::OrtValue**);
  check(slot<GetInput>(table_, Slot::kKernelContextGetInput)(context, index, &value), "an input");
  return view(value, dims);
}

TensorView Api::view(const abi::OrtValue* value, int64_t* dims) const {
  TensorView view;
  if (value == nullptr) {
    view.rank = TensorView::kAbsent;
    return view;
  }
  using GetData = abi::OrtStatus* (*)(abi::OrtValue*, void**);
  check(slot<GetData>(table_, Slot::kGetTensorMutableData)(const_cast<abi::OrtValue*>(value),
                                                           &view.data),
        "tensor data");
  if (has_shape_reference_) {
    using Reference =
        abi::OrtStatus* (*)(const abi::OrtValue*, int32_t*, const int64_t**, size_t*);
    check(slot<Reference>(table_, Slot::kGetTensorElementTypeAndShapeDataReference)(
              value, &view.type, &view.shape, &view.rank),
          "a tensor shape");
    return view;
  }
  abi::OrtTensorTypeAndShapeInfo* info = nullptr;
  using GetInfo = abi::OrtStatus* (*)(const abi::OrtValue*, abi::OrtTensorTypeAndShapeInfo**);
  check(slot<GetInfo>(table_, Slot::kGetTensorTypeAndShape)(value, &info), "a tensor shape");
  using GetType = abi::OrtStatus* (*)(const abi::OrtTensorTypeAndShapeInfo*, int32_t*);
  using GetCount = abi::OrtStatus* (*)(const abi::OrtTensorTypeAndShapeInfo*, size_t*);
  using GetDims = abi::OrtStatus* (*)(const abi::OrtTensorTypeAndShapeInfo*, int64_t*, size_t);
  bool good = ok(slot<GetType>(table_, Slot::kGetTensorElementType)(info, &view.type)) &&
              ok(slot<GetCount>(table_, Slot::kGetDimensionsCount)(info, &view.rank)) &&
              view.rank <= TensorView::kMaxRank &&
              ok(slot<GetDims>(table_, Slot::kGetDimensions)(info, dims, view.rank));
  slot<void (*)(abi::OrtTensorTypeAndShapeInfo*)>(
      table_, Slot::kReleaseTensorTypeAndShapeInfo)(info);
  if (!good) throw OpError("a tensor shape could not be read", abi::kFail);
  view.shape = dims;
  return view;
}

TensorView Api::constant_input(const abi::OrtKernelInfo* info, size_t index,
                               int64_t* dims) const {
  int is_constant = 0;
  const abi::OrtValue* value = nullptr;
  using GetConstant =
      abi::OrtStatus* (*)(const abi::OrtKernelInfo*, size_t, int*, const abi::OrtValue**);
  const GetConstant get = slot<GetConstant>(table_, Slot::kKernelInfoGetConstantInputTensor);
  if (!ok(get(info, index, &is_constant, &value)) || !is_constant) value = nullptr;
  return view(value, dims);
}

void* Api::output(abi::OrtKernelContext* context, size_t index, const int64_t* shape,
                  size_t rank) const {
  abi::OrtValue* value = nullptr;
  using GetOutput = abi::OrtStatus* (*)(abi::OrtKernelContext*, size_t, const int64_t*, size_t,
                                        abi::OrtValue**);
  check(slot<GetOutput>(table_, Slot::kKernelContextGetOutput)(context, index, shape, rank,
                                                               &value),
        "an output");
  if (value == nullptr) return nullptr;
  void* data = nullptr;
  using GetData = abi::OrtStatus* (*)(abi::OrtValue*, void**);
  check(slot<GetData>(table_, Slot::kGetTensorMutableData)(value, &data), "tensor data");
  return data;
}

size_t Api::output_count(const abi::OrtKernelContext* context) const {
  size_t count = 0;
  using Get = abi::OrtStatus* (*)(const abi::OrtKernelContext*, size_t*);
  check(slot<Get>(table_, Slot::kKernelContextGetOutputCount)(context, &count),
        "the number of outputs");
  return count;
}

bool Api::read(const abi::OrtKernelInfo* info, const char* name, float* value) const {
  using Get = abi::OrtStatus* (*)(const abi::OrtKernelInfo*, const char*, float*);
  return ok(slot<Get>(table_, Slot::kKernelInfoGetAttributeFloat)(info, name, value));
}

bool Api::read(const abi::OrtKernelInfo* info, const char* name, int64_t* value) const {
  using Get = abi::OrtStatus* (*)(const abi::OrtKernelInfo*, const char*, int64_t*);
  return ok(slot<Get>(table_, Slot::kKernelInfoGetAttributeInt64)(info, name, value));
}

bool Api::read(const abi::OrtKernelInfo* info, const char* name, std::string* value) const {
  using Get = abi::OrtStatus* (*)(const abi::OrtKernelInfo*, const char*, char*, size_t*);
  const Get get = slot<Get>(table_, Slot::kKernelInfoGetAttributeString);
  size_t size = 0;
  if (!ok(get(info, name, nullptr, &size)) || size == 0) return false;
  value->assign(size, '\0');
  if (!ok(get(info, name, &(*value)[0], &size))) return false;
  value->resize(size - 1);  // the size counts the closing zero
  return true;
}

bool Api::has_attribute(const abi::OrtKernelInfo* info, const char* name) const {
  float as_float = 0;
  int64_t as_int = 0;
  std::string as_string;
  return read(info, name, &as_float) || read(info, name, &as_int) ||
         read(info, name, &as_string);
}

// ORT has no "is it there": a failed read of the right type is a missing attribute only if the
// other types fail as well.
float Api::attribute(const abi::OrtKernelInfo* info, const char* name, float fallback) const {
  float value = 0;
  if (read(info, name, &value)) return value;
  if (has_attribute(info, name)) throw OpError(std::string(name) + " must be a float");
  return fallback;
}

int64_t Api::attribute(const abi::OrtKernelInfo* info, const char* name,
                       int64_t fallback) const {
  int64_t value = 0;
  if (read(info, name, &value)) return value;
  if (has_attribute(info, name)) throw OpError(std::string(name) + " must be an integer");
  return fallback;
}

std::string Api::attribute(const abi::OrtKernelInfo* info, const char* name,
                           const std::string& fallback) const {
  std::string value;
  if (read(info, name, &value)) return value;
  if (has_attribute(info, name)) throw OpError(std::string(name) + " must be a string");
  return fallback;
}

}  // namespace ortloom
