// The part of ONNX Runtime's C ABI that the op library uses, filled in: values in plain memory, and
// a table whose other functions end the program.
#ifndef ORTLOOM_HOST_ORT_H_
#define ORTLOOM_HOST_ORT_H_

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ort_abi.h"

using namespace ortloom::abi;

namespace ortloom::abi {
struct OrtStatus {
  int32_t code;
  std::string text;
};
struct OrtSessionOptions {
  const OrtCustomOpDomain* domain = nullptr;
};
struct OrtCustomOpDomain {
  std::vector<const CustomOp*> ops;
};
struct OrtKernelInfo {
  std::map<std::string, int64_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, std::string> strings;
};
struct OrtValue {
  int32_t type = 0;
  std::vector<int64_t> shape;
  unsigned char* data = nullptr;
  std::unique_ptr<unsigned char, void (*)(void*)> owned{nullptr, std::free};
  size_t bytes = 0;
};
struct OrtTensorTypeAndShapeInfo {
  const OrtValue* value;
};
struct OrtKernelContext {
  std::vector<OrtValue*> inputs, outputs;
  std::vector<int32_t> output_types;
};
}  // namespace ortloom::abi

namespace {

[[noreturn]] void die(const std::string& text) {
  std::fprintf(stderr, "op_host: %s\n", text.c_str());
  std::exit(2);
}

void unexpected() { die("the library called a function that this host does not have"); }

OrtStatus* failure(const char* text) { return new OrtStatus{kFail, text}; }

size_t size_of(int32_t type) {
  switch (type) {
    case kUint8: return 1;
    case 3: return 1;  // int8
    case kFloat16: case kBfloat16: return 2;
    case kInt64: return 8;
    default: return 4;
  }
}

void allocate(OrtValue* value, int32_t type, const int64_t* shape, size_t rank) {
  value->type = type;
  value->shape.assign(shape, shape + rank);
  size_t count = 1;
  for (size_t i = 0; i < rank; ++i) count *= static_cast<size_t>(shape[i]);
  value->bytes = count * size_of(type);
  value->owned.reset(static_cast<unsigned char*>(
      std::aligned_alloc(64, (value->bytes + 64) / 64 * 64)));
  value->data = value->owned.get();
  std::memset(value->data, 0xff, value->bytes);  // NaN where a result is missing
}

template <class Value>
OrtStatus* give(const std::map<std::string, Value>& from, const char* name, Value* out) {
  const auto found = from.find(name);
  if (found == from.end()) return failure("no such attribute");
  *out = found->second;
  return nullptr;
}

constexpr size_t kSlots = 480;
void* table[kSlots];

template <class Function>
void set(Slot slot, Function* function) {
  table[static_cast<size_t>(slot)] = reinterpret_cast<void*>(function);
}

void fill_table() {
  for (void*& slot : table) slot = reinterpret_cast<void*>(&unexpected);
  set(Slot::kCreateStatus, +[](int32_t code, const char* text) { return new OrtStatus{code, text}; });
  set(Slot::kReleaseStatus, +[](OrtStatus* status) { delete status; });
  set(Slot::kCreateCustomOpDomain, +[](const char*, OrtCustomOpDomain** out) -> OrtStatus* {
    *out = new OrtCustomOpDomain;
    return nullptr;
  });
  set(Slot::kCustomOpDomainAdd, +[](OrtCustomOpDomain* domain, const CustomOp* op) -> OrtStatus* {
    domain->ops.push_back(op);
    return nullptr;
  });
  set(Slot::kAddCustomOpDomain,
      +[](OrtSessionOptions* options, OrtCustomOpDomain* domain) -> OrtStatus* {
        options->domain = domain;
        return nullptr;
      });
  set(Slot::kKernelInfoGetAttributeFloat,
      +[](const OrtKernelInfo* info, const char* name, float* out) {
        return give(info->floats, name, out);
      });
  set(Slot::kKernelInfoGetAttributeInt64,
      +[](const OrtKernelInfo* info, const char* name, int64_t* out) {
        return give(info->ints, name, out);
      });
  set(Slot::kKernelInfoGetAttributeString,
      +[](const OrtKernelInfo* info, const char* name, char* out, size_t* size) -> OrtStatus* {
        std::string text;
        OrtStatus* status = give(info->strings, name, &text);
        if (status != nullptr) return status;
        if (out != nullptr) std::memcpy(out, text.c_str(), text.size() + 1);
        *size = text.size() + 1;
        return nullptr;
      });
  set(Slot::kKernelContextGetInputCount,
      +[](const OrtKernelContext* context, size_t* count) -> OrtStatus* {
        *count = context->inputs.size();
        return nullptr;
      });
  set(Slot::kKernelContextGetOutputCount,
      +[](const OrtKernelContext* context, size_t* count) -> OrtStatus* {
        *count = context->outputs.size();
        return nullptr;
      });
  set(Slot::kKernelContextGetInput,
      +[](const OrtKernelContext* context, size_t i, const OrtValue** out) -> OrtStatus* {
        *out = i < context->inputs.size() ? context->inputs[i] : nullptr;
        return nullptr;
      });
  set(Slot::kKernelContextGetOutput,
      +[](OrtKernelContext* context, size_t i, const int64_t* shape, size_t rank,
          OrtValue** out) -> OrtStatus* {
        if (i >= context->outputs.size()) return failure("no such output");
        OrtValue* value = context->outputs[i];
        if (value->data == nullptr) allocate(value, context->output_types[i], shape, rank);
        *out = value;
        return nullptr;
      });
  set(Slot::kKernelInfoGetConstantInputTensor,
      +[](const OrtKernelInfo*, size_t, int* is_constant, const OrtValue** out) -> OrtStatus* {
        *is_constant = 0;
        *out = nullptr;
        return nullptr;
      });
  set(Slot::kGetTensorMutableData, +[](OrtValue* value, void** data) -> OrtStatus* {
    *data = value->data;
    return nullptr;
  });
  set(Slot::kGetTensorTypeAndShape,
      +[](const OrtValue* value, OrtTensorTypeAndShapeInfo** out) -> OrtStatus* {
        *out = new OrtTensorTypeAndShapeInfo{value};
        return nullptr;
      });
  set(Slot::kReleaseTensorTypeAndShapeInfo, +[](OrtTensorTypeAndShapeInfo* info) { delete info; });
  set(Slot::kGetTensorElementType,
      +[](const OrtTensorTypeAndShapeInfo* info, int32_t* type) -> OrtStatus* {
        *type = info->value->type;
        return nullptr;
      });
  set(Slot::kGetDimensionsCount,
      +[](const OrtTensorTypeAndShapeInfo* info, size_t* rank) -> OrtStatus* {
        *rank = info->value->shape.size();
        return nullptr;
      });
  set(Slot::kGetDimensions,
      +[](const OrtTensorTypeAndShapeInfo* info, int64_t* out, size_t rank) -> OrtStatus* {
        for (size_t i = 0; i < rank; ++i) out[i] = info->value->shape[i];
        return nullptr;
      });
}

const OrtApi* get_api(uint32_t) { return reinterpret_cast<const OrtApi*>(table); }
const OrtApiBase kBase = {get_api, [] { return "1.18.0"; }};

}  // namespace

#endif  // ORTLOOM_HOST_ORT_H_
