// A host for the op library that is as small as can be: it fills in the part of ONNX Runtime's C
// ABI that the library uses, runs the calls of a file through the library's registered ops and its
// sampler, and writes what they give. So the library of another processor runs under an emulator,
// with neither Python nor ONNX Runtime for that processor.
//
//   op_host LIBRARY report            prints the tiers and what the CPU has of them
//   op_host LIBRARY run CALLS RESULTS
//
// The files are what tests/kernels/op_host.py writes and reads: numbers are little-endian, a text
// is a u32 length and its bytes.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ort_abi.h"
#include "sampler.h"

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

// ---- the tables -------------------------------------------------------------------------------

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

// ---- files ------------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(const char* path) : in_(path, std::ios::binary) {
    if (!in_) die(std::string("cannot read ") + path);
  }
  bool more() { return in_.peek() != std::ifstream::traits_type::eof(); }
  void bytes(void* to, size_t size) {
    in_.read(static_cast<char*>(to), static_cast<std::streamsize>(size));
    if (static_cast<size_t>(in_.gcount()) != size) die("the file of calls ends too early");
  }
  template <class T>
  T number() {
    T value;
    bytes(&value, sizeof(value));
    return value;
  }
  std::string text() {
    std::string out(number<uint32_t>(), '\0');
    bytes(&out[0], out.size());
    return out;
  }
  // Null for an input that is left out.
  std::unique_ptr<OrtValue> tensor() {
    const int32_t type = number<int32_t>();
    if (type == 0) return nullptr;
    auto value = std::make_unique<OrtValue>();
    std::vector<int64_t> shape(number<uint32_t>());
    for (int64_t& size : shape) size = number<int64_t>();
    allocate(value.get(), type, shape.data(), shape.size());
    bytes(value->data, value->bytes);
    return value;
  }

 private:
  std::ifstream in_;
};

class Writer {
 public:
  explicit Writer(const char* path) : out_(path, std::ios::binary) {}
  void bytes(const void* from, size_t size) {
    out_.write(static_cast<const char*>(from), static_cast<std::streamsize>(size));
  }
  template <class T>
  void number(T value) {
    bytes(&value, sizeof(value));
  }
  void text(const std::string& value) {
    number(static_cast<uint32_t>(value.size()));
    bytes(value.data(), value.size());
  }
  void tensor(const OrtValue& value) {
    number(value.type);
    number(static_cast<uint32_t>(value.shape.size()));
    for (const int64_t size : value.shape) number(size);
    bytes(value.data, value.bytes);
  }
  void close() {
    out_.close();
    if (!out_) die("the results cannot be written");
  }

 private:
  std::ofstream out_;
};

// ---- calls ------------------------------------------------------------------------------------

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) die(dlerror());
  }
  template <class Function>
  Function symbol(const char* name) const {
    void* found = dlsym(handle_, name);
    if (found == nullptr) die(std::string("the library has no ") + name);
    return reinterpret_cast<Function>(found);
  }

 private:
  void* handle_;
};

// The status' text; it is deleted.
std::string take(OrtStatus* status) {
  if (status == nullptr) return "";
  const std::string text = status->text;
  delete status;
  return text;
}

struct Call {
  OrtKernelInfo info;
  std::vector<std::unique_ptr<OrtValue>> inputs, outputs;
  std::vector<int32_t> shared;  // the input whose memory an output shares, or -1
};

Call read_call(Reader* reader) {
  Call call;
  for (uint32_t left = reader->number<uint32_t>(); left > 0; --left) {
    const std::string name = reader->text();
    switch (reader->number<uint8_t>()) {
      case 0: call.info.ints[name] = reader->number<int64_t>(); break;
      case 1: call.info.floats[name] = reader->number<float>(); break;
      default: call.info.strings[name] = reader->text();
    }
  }
  for (uint32_t left = reader->number<uint32_t>(); left > 0; --left) {
    call.inputs.push_back(reader->tensor());
  }
  for (uint32_t left = reader->number<uint32_t>(); left > 0; --left) {
    call.shared.push_back(reader->number<int32_t>());
    call.outputs.push_back(std::make_unique<OrtValue>());
    if (call.shared.back() < 0) continue;
    const OrtValue& input = *call.inputs.at(static_cast<size_t>(call.shared.back()));
    call.outputs.back()->type = input.type;
    call.outputs.back()->shape = input.shape;
    call.outputs.back()->data = input.data;
    call.outputs.back()->bytes = input.bytes;
  }
  return call;
}

std::string run_op(const OrtCustomOpDomain& domain, const std::string& name, Call* call) {
  for (const CustomOp* op : domain.ops) {
    if (op->name(op) != name) continue;
    void* kernel = nullptr;
    std::string error = take(op->create_v2(op, get_api(0), &call->info, &kernel));
    if (!error.empty()) return error;
    OrtKernelContext context;
    for (const auto& input : call->inputs) context.inputs.push_back(input.get());
    for (size_t i = 0; i < call->outputs.size(); ++i) {
      context.outputs.push_back(call->outputs[i].get());
      context.output_types.push_back(op->output_type(op, i));
    }
    error = take(op->compute_v2(kernel, &context));
    op->destroy(kernel);
    return error;
  }
  die("the library has no op " + name);
}

// Inputs: logits [N, V] f32, rows [N, size of a row] u8 without pointers; attribute "top" is how
// many raw log-probabilities each row wants. Outputs: rows, values [N, 1 + top] as pairs of 32 bits.
std::string run_sampler(const Library& library, Call* call) {
  using Create = void* (*)(int64_t, int64_t, const char**);
  using Run = int (*)(const void*, float*, int64_t, OrtloomSampleRow* const*);
  const OrtValue& logits = *call->inputs[0];
  OrtValue& bytes = *call->inputs[1];
  const int64_t count = logits.shape[0], vocab = logits.shape[1];
  const int64_t top = call->info.ints["top"], width = 2 * (1 + top);
  const char* error = nullptr;
  void* sampler = library.symbol<Create>("OrtloomSamplerCreate")(vocab, bytes.shape[1], &error);
  if (sampler == nullptr) return error;
  const int64_t shape[] = {count, width};
  allocate(call->outputs[1].get(), kFloat, shape, 2);
  auto* rows = reinterpret_cast<OrtloomSampleRow*>(bytes.data);
  auto* values = reinterpret_cast<double*>(call->outputs[1]->data);
  std::vector<int64_t> ids(static_cast<size_t>(1 + top)), ranks(ids.size());
  std::vector<OrtloomSampleRow*> all;
  for (int64_t i = 0; i < count; ++i) {
    rows[i].raw.kind = 1;
    rows[i].raw.num_top = top;
    rows[i].raw.values = values + i * (1 + top);
    rows[i].raw.ids = ids.data();
    rows[i].raw.ranks = ranks.data();
    all.push_back(&rows[i]);
  }
  const int failed = library.symbol<Run>("OrtloomSamplerRun")(
      sampler, reinterpret_cast<float*>(logits.data), count, all.data());
  library.symbol<void (*)(void*)>("OrtloomSamplerDestroy")(sampler);
  for (int64_t i = 0; i < count; ++i) rows[i].raw = {};
  return failed != 0 ? "out of memory" : "";
}

int run(const Library& library, const char* calls, const char* results) {
  OrtSessionOptions options;
  using Register = OrtStatus* (*)(OrtSessionOptions*, const OrtApiBase*);
  const std::string refusal =
      take(library.symbol<Register>("RegisterCustomOps")(&options, &kBase));
  if (!refusal.empty()) die(refusal);
  Reader reader(calls);
  Writer writer(results);
  while (reader.more()) {
    const std::string name = reader.text();
    const int threads = reader.number<int32_t>();
    const char* problem = library.symbol<const char* (*)(int, int)>("OrtloomTeamConfigure")(threads, 0);
    if (problem != nullptr) die(problem);
    Call call = read_call(&reader);
    const std::string error = name == "sampler" ? run_sampler(library, &call)
                                                : run_op(*options.domain, name, &call);
    writer.text(error);
    if (!error.empty()) continue;
    for (const auto& output : call.outputs) writer.tensor(*output);
  }
  writer.close();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  fill_table();
  const std::string verb = argc > 2 ? argv[2] : "";
  if (verb == "report" && argc == 3) {
    const Library library(argv[1]);
    std::fputs(library.symbol<const char* (*)()>("OrtloomIsaReport")(), stdout);
    return 0;
  }
  if (verb == "run" && argc == 5) return run(Library(argv[1]), argv[3], argv[4]);
  die("usage: op_host LIBRARY report | op_host LIBRARY run CALLS RESULTS");
}
