// The library's exported symbols: RegisterCustomOps, which ONNX Runtime calls; OrtloomIsaReport,
// which lets `collect-env` name the tier without a session; OrtloomSelectOps; OrtloomTeamConfigure.

#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "isa.h"
#include "op.h"
#include "ort_api.h"
#include "team.h"

#define ORTLOOM_EXPORT extern "C" __attribute__((visibility("default")))

namespace ortloom {
namespace {

struct Registered {
  const char* name;
  const OpEntry* entry;
};

// A model names its packed nodes by form where it has several forms: each needs a body of its own,
// and ONNX Runtime tells bodies apart by name alone. Layers of up to four forms have a number each.
constexpr Registered kOps[] = {
    {"PagedAttention", &kPagedAttentionOp},
    {"PagedAttentionFloat16", &kPagedAttentionFloat16Op},
    {"PagedAttentionBFloat16", &kPagedAttentionBFloat16Op},
    {"PagedAttentionInt8", &kPagedAttentionInt8Op},
    {"PackedLinear", &kPackedLinearOp},
    {"PackedLinearFloat", &kPackedLinearOp},
    {"PackedLinearSymmetric", &kPackedLinearOp},
    {"PackedLinearMinima", &kPackedLinearOp},
    {"PackedEmbedding", &kPackedEmbeddingOp},
    {"PackedEmbeddingFloat", &kPackedEmbeddingOp},
    {"PackedEmbeddingSymmetric", &kPackedEmbeddingOp},
    {"PackedEmbeddingMinima", &kPackedEmbeddingOp},
    {"SkipRMSNorm", &kSkipRmsNormOp},
    {"DecoderLayer", &kDecoderLayerOp},
    {"DecoderLayer_2", &kDecoderLayerOp},
    {"DecoderLayer_3", &kDecoderLayerOp},
    {"DecoderLayer_4", &kDecoderLayerOp},
    {"DecoderLayerFloat16", &kDecoderLayerFloat16Op},
    {"DecoderLayerFloat16_2", &kDecoderLayerFloat16Op},
    {"DecoderLayerFloat16_3", &kDecoderLayerFloat16Op},
    {"DecoderLayerFloat16_4", &kDecoderLayerFloat16Op},
    {"DecoderLayerBFloat16", &kDecoderLayerBFloat16Op},
    {"DecoderLayerBFloat16_2", &kDecoderLayerBFloat16Op},
    {"DecoderLayerBFloat16_3", &kDecoderLayerBFloat16Op},
    {"DecoderLayerBFloat16_4", &kDecoderLayerBFloat16Op},
    {"DecoderLayerInt8", &kDecoderLayerInt8Op},
    {"DecoderLayerInt8_2", &kDecoderLayerInt8Op},
    {"DecoderLayerInt8_3", &kDecoderLayerInt8Op},
    {"DecoderLayerInt8_4", &kDecoderLayerInt8Op},
    {"ExpertRouting", &kExpertRoutingOp},
    {"PackedExperts", &kPackedExpertsOp},
    {"PackedExpertsFloatFloat", &kPackedExpertsOp},
    {"PackedExpertsFloatSymmetric", &kPackedExpertsOp},
    {"PackedExpertsFloatMinima", &kPackedExpertsOp},
    {"PackedExpertsSymmetricFloat", &kPackedExpertsOp},
    {"PackedExpertsSymmetricSymmetric", &kPackedExpertsOp},
    {"PackedExpertsSymmetricMinima", &kPackedExpertsOp},
    {"PackedExpertsMinimaFloat", &kPackedExpertsOp},
    {"PackedExpertsMinimaSymmetric", &kPackedExpertsOp},
    {"PackedExpertsMinimaMinima", &kPackedExpertsOp},
};

// A bit for each op of kOps.
using OpSet = uint64_t;
constexpr OpSet kEveryOp = ~OpSet{0};
static_assert(std::size(kOps) <= 64);

// What this thread's next registration gives.
thread_local OpSet selected = kEveryOp;

// The ops whose names occur in a serialised model: all that it uses, and perhaps some more.
OpSet ops_in(const char* model, size_t size) {
  OpSet found = 0;
  for (size_t i = 0; i < std::size(kOps); ++i) {
    if (memmem(model, size, kOps[i].name, std::strlen(kOps[i].name)) != nullptr) {
      found |= OpSet{1} << i;
    }
  }
  return found;
}

// One op of one tier. ONNX Runtime keeps the pointer for as long as a session lives, so ops and
// domains are made once and never freed.
struct Op : abi::CustomOp {
  const char* name_text;
  const OpEntry* entry;
  const Tier* tier;
  bool has_shape_reference;
};

const Op& self(const abi::CustomOp* op) { return *static_cast<const Op*>(op); }

abi::OrtStatus* report(const Api& api, const OpEntry& entry, const std::exception& error) {
  const std::string text = std::string("ortloom::") + entry.name + ": " + error.what();
  const auto* known = dynamic_cast<const OpError*>(&error);
  return api.status(known != nullptr ? known->code() : abi::kFail, text.c_str());
}

struct Kernel {
  Api api;
  const OpEntry* entry;
  std::unique_ptr<OpKernel> op;
};

abi::OrtStatus* create(const abi::CustomOp* op, const abi::OrtApi* table,
                       const abi::OrtKernelInfo* info, void** kernel) {
  const Api api(table, self(op).has_shape_reference);
  const OpEntry* entry = self(op).entry;
  try {
    *kernel = new Kernel{api, entry, entry->create(api, info, *self(op).tier)};
    return nullptr;
  } catch (const std::exception& error) {
    return report(api, *entry, error);
  }
}

abi::OrtStatus* compute(void* opaque, abi::OrtKernelContext* context) {
  const Kernel& kernel = *static_cast<const Kernel*>(opaque);
  try {
    kernel.op->compute(context);
    return nullptr;
  } catch (const std::exception& error) {
    return report(kernel.api, *kernel.entry, error);
  }
}

Op make_op(const Registered& registered, const Tier* tier, bool has_shape_reference) {
  using Custom = const abi::CustomOp*;
  Op op{};
  op.version = abi::kApiVersion;
  op.name = [](Custom o) { return self(o).name_text; };
  op.execution_provider = [](Custom) -> const char* { return nullptr; };  // CPU
  op.input_type = [](Custom o, size_t i) { return self(o).entry->input_type(i); };
  op.input_count = [](Custom o) { return self(o).entry->inputs; };
  op.output_type = [](Custom o, size_t i) { return self(o).entry->output_type(i); };
  op.output_count = [](Custom o) { return self(o).entry->outputs; };
  op.destroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  op.input_characteristic = [](Custom o, size_t i) -> int32_t {
    return self(o).entry->input_is_optional(i) ? abi::kOptional : abi::kRequired;
  };
  op.output_characteristic = [](Custom o, size_t i) -> int32_t {
    return self(o).entry->output_is_optional(i) ? abi::kOptional : abi::kRequired;
  };
  op.input_memory_type = [](Custom, size_t) -> int32_t { return 0; };
  op.create_v2 = create;
  op.compute_v2 = compute;
  op.start_version = [](Custom) { return 1; };
  op.end_version = [](Custom) { return 1; };
  op.name_text = registered.name;
  op.entry = registered.entry;
  op.tier = tier;
  op.has_shape_reference = has_shape_reference;
  return op;
}

// The domain of some ops of one tier.
abi::OrtCustomOpDomain* make_domain(const Api& api, const Tier& tier, OpSet ops) {
  using Create = abi::OrtStatus* (*)(const char*, abi::OrtCustomOpDomain**);
  using Add = abi::OrtStatus* (*)(abi::OrtCustomOpDomain*, const abi::CustomOp*);
  abi::OrtCustomOpDomain* domain = nullptr;
  api.check(abi::slot<Create>(api.table(), abi::Slot::kCreateCustomOpDomain)("ortloom", &domain),
            "a custom op domain");
  for (size_t i = 0; i < std::size(kOps); ++i) {
    if ((ops >> i & 1) == 0) continue;
    const Op* op = new Op(make_op(kOps[i], &tier, api.has_shape_reference()));
    api.check(abi::slot<Add>(api.table(), abi::Slot::kCustomOpDomainAdd)(domain, op),
              "a custom op");
  }
  return domain;
}

abi::OrtCustomOpDomain* domain_of(const Api& api, const Tier& tier, OpSet ops) {
  static std::map<std::pair<const Tier*, OpSet>, abi::OrtCustomOpDomain*> domains;
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  abi::OrtCustomOpDomain*& domain = domains[{&tier, ops}];
  if (domain == nullptr) domain = make_domain(api, tier, ops);
  return domain;
}

}  // namespace
}  // namespace ortloom

ORTLOOM_EXPORT ortloom::abi::OrtStatus* RegisterCustomOps(
    ortloom::abi::OrtSessionOptions* options, const ortloom::abi::OrtApiBase* base) {
  using ortloom::abi::Slot;
  const ortloom::abi::OrtApi* any = base->GetApi(1);
  const ortloom::OpSet ops = std::exchange(ortloom::selected, ortloom::kEveryOp);
  try {
    const ortloom::Api api(base);
    using Add = ortloom::abi::OrtStatus* (*)(ortloom::abi::OrtSessionOptions*,
                                             ortloom::abi::OrtCustomOpDomain*);
    return ortloom::abi::slot<Add>(api.table(), Slot::kAddCustomOpDomain)(
        options, ortloom::domain_of(api, ortloom::choose_tier(), ops));
  } catch (const std::exception& error) {
    return ortloom::Api(any, false).status(ortloom::abi::kFail, error.what());
  }
}

// Lets the calling thread's next RegisterCustomOps give only what a model of that many bytes needs,
// and all ops where `model` is null. ONNX Runtime describes every op to every session anew, which
// for all of them takes as long as reading a small model's graph.
ORTLOOM_EXPORT void OrtloomSelectOps(const char* model, size_t size) {
  ortloom::selected = model == nullptr ? ortloom::kEveryOp : ortloom::ops_in(model, size);
}

// One line a tier, best first: "name<TAB>state", where state is "used", "available" or "lacks ...";
// if no tier can be chosen, one more line "error<TAB>text". The text stays valid until the same
// thread's next call.
ORTLOOM_EXPORT const char* OrtloomIsaReport() {
  thread_local std::string text;
  try {
    text.clear();
    const ortloom::Tier* used = nullptr;
    std::string error;
    try {
      used = &ortloom::choose_tier();
    } catch (const ortloom::OpError& problem) {
      error = problem.what();
    }
    int count = 0;
    const ortloom::Tier* list = ortloom::tiers(&count);
    for (int i = 0; i < count; ++i) {
      const std::string state = !list[i].lacking.empty() ? "lacks " + list[i].lacking
                                : &list[i] == used       ? "used"
                                                         : "available";
      text += std::string(list[i].name) + "\t" + state + "\n";
    }
    if (!error.empty()) text += "error\t" + error + "\n";
    return text.c_str();
  } catch (const std::exception&) {
    return "error\tout of memory\n";
  }
}

// Null if the team is set up, else what is wrong with the arguments (text that is never freed).
ORTLOOM_EXPORT const char* OrtloomTeamConfigure(int threads, int spin_microseconds) {
  try {
    return ortloom::team::configure(threads, spin_microseconds);
  } catch (const std::exception&) {
    return "the team's threads could not be stopped or made";
  }
}

// Threads a region may use: what was configured, or fewer if the system refused to make more.
ORTLOOM_EXPORT int OrtloomTeamThreads() {
  try {
    return ortloom::team::threads();
  } catch (const std::exception&) {
    return 1;
  }
}
