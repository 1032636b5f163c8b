// A host for the op library that is as small as can be: it stands in for ONNX Runtime (host_ort.h),
// runs the calls of a file (host_files.h) through the library's registered ops and its sampler, and
// writes what they give. So the library of another processor runs under an emulator, with neither
// Python nor ONNX Runtime for that processor.
//
//   op_host LIBRARY report            prints the tiers and what the CPU has of them
//   op_host LIBRARY run CALLS RESULTS

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "host_files.h"
#include "host_ort.h"
#include "sampler.h"

namespace {

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
