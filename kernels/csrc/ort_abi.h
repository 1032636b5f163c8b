// The part of ONNX Runtime's C ABI that the op library uses, declared on its own: no ORT package
// ships its headers and the library must not link to libonnxruntime. OrtApi is a table of function
// pointers that only ever grows at its end, so a slot number is an ABI constant.
#ifndef ORTLOOM_ORT_ABI_H_
#define ORTLOOM_ORT_ABI_H_

#include <cstddef>
#include <cstdint>

namespace ortloom::abi {

// The API version we ask for and the OrtCustomOp layout we fill (ONNX Runtime 1.18).
inline constexpr uint32_t kApiVersion = 18;

struct OrtApi;
struct OrtStatus;
struct OrtSessionOptions;
struct OrtCustomOpDomain;
struct OrtKernelInfo;
struct OrtKernelContext;
struct OrtValue;
struct OrtTensorTypeAndShapeInfo;
struct OrtShapeInferContext;

struct OrtApiBase {
  const OrtApi* (*GetApi)(uint32_t version);
  const char* (*GetVersionString)();
};

enum ErrorCode : int32_t { kFail = 1, kInvalidArgument = 2, kNotImplemented = 9 };

enum ElementType : int32_t {
  kAnyType = 0,
  kFloat = 1,
  kUint8 = 2,
  kInt8 = 3,
  kInt32 = 6,
  kInt64 = 7,
  kFloat16 = 10,
  kBfloat16 = 16,
};

enum Characteristic : int32_t { kRequired = 0, kOptional = 1 };

// Slots with the first ORT release that has them where that is newer than 1.14.
enum class Slot : size_t {
  kCreateStatus = 0,
  kCreateCustomOpDomain = 26,
  kCustomOpDomainAdd = 27,
  kAddCustomOpDomain = 28,
  kGetTensorMutableData = 51,
  kGetTensorElementType = 60,
  kGetDimensionsCount = 61,
  kGetDimensions = 62,
  kGetTensorTypeAndShape = 65,
  kKernelInfoGetAttributeFloat = 85,
  kKernelInfoGetAttributeInt64 = 86,
  kKernelInfoGetAttributeString = 87,
  kKernelContextGetInputCount = 88,
  kKernelContextGetOutputCount = 89,
  kKernelContextGetInput = 90,
  kKernelContextGetOutput = 91,
  kReleaseStatus = 93,
  kReleaseTensorTypeAndShapeInfo = 99,
  kKernelInfoGetConstantInputTensor = 249,            // 1.15
  kGetTensorElementTypeAndShapeDataReference = 414,   // 1.24; gate on the version string
};

template <class Function>
inline Function slot(const OrtApi* api, Slot index) {
  return reinterpret_cast<Function>(
      reinterpret_cast<void* const*>(api)[static_cast<size_t>(index)]);
}

// OrtCustomOp as of API version 18. Fields after `compute` that stay null fall back to ORT's
// defaults; `create` and `compute` stay null because the V2 callbacks can return a status.
struct CustomOp {
  uint32_t version;
  void* (*create)(const CustomOp*, const OrtApi*, const OrtKernelInfo*);
  const char* (*name)(const CustomOp*);
  const char* (*execution_provider)(const CustomOp*);
  int32_t (*input_type)(const CustomOp*, size_t);
  size_t (*input_count)(const CustomOp*);
  int32_t (*output_type)(const CustomOp*, size_t);
  size_t (*output_count)(const CustomOp*);
  void (*compute)(void*, OrtKernelContext*);
  void (*destroy)(void*);
  int32_t (*input_characteristic)(const CustomOp*, size_t);
  int32_t (*output_characteristic)(const CustomOp*, size_t);
  int32_t (*input_memory_type)(const CustomOp*, size_t);
  int (*variadic_input_min_arity)(const CustomOp*);
  int (*variadic_input_homogeneity)(const CustomOp*);
  int (*variadic_output_min_arity)(const CustomOp*);
  int (*variadic_output_homogeneity)(const CustomOp*);
  OrtStatus* (*create_v2)(const CustomOp*, const OrtApi*, const OrtKernelInfo*, void**);
  OrtStatus* (*compute_v2)(void*, OrtKernelContext*);
  OrtStatus* (*infer_output_shape)(const CustomOp*, OrtShapeInferContext*);
  int (*start_version)(const CustomOp*);
  int (*end_version)(const CustomOp*);
  size_t (*may_inplace)(int**, int**);
  void (*release_may_inplace)(int*, int*);
  size_t (*alias_map)(int**, int**);
  void (*release_alias_map)(int*, int*);
};

static_assert(sizeof(void*) == 8, "the slot table is written for 64-bit targets");
static_assert(sizeof(CustomOp) == 26 * sizeof(void*), "OrtCustomOp of API 18 has 26 words");
static_assert(offsetof(CustomOp, input_characteristic) == 10 * sizeof(void*), "layout");
static_assert(offsetof(CustomOp, create_v2) == 17 * sizeof(void*), "layout");
static_assert(offsetof(CustomOp, compute_v2) == 18 * sizeof(void*), "layout");
static_assert(sizeof(ElementType) == sizeof(int32_t), "C enums are 32 bits wide");
static_assert(sizeof(OrtApiBase) == 2 * sizeof(void*), "layout");

}  // namespace ortloom::abi

#endif  // ORTLOOM_ORT_ABI_H_
