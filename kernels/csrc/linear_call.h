// What the ops that run packed linears share on the ORT side: the choice of an activation and the
// memory of a call.
#ifndef ORTLOOM_LINEAR_CALL_H_
#define ORTLOOM_LINEAR_CALL_H_

#include <string>

#include "linear.h"
#include "ort_api.h"
#include "scratch.h"

namespace ortloom {

inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// kNone for an empty name; throws OpError for one that is unknown.
inline Activation activation_named(const std::string& name) {
  if (name.empty()) return Activation::kNone;
  if (name == "silu") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_tanh") return Activation::kGeluTanh;
  throw OpError("activation \"" + name + "\" is unknown; choices: silu, gelu, gelu_tanh");
}

// Room for a call's rows as `LinearKernels::prepare` writes them.
inline void carve(const LinearKernels& kernels, LinearCall* call, Carver* carver) {
  const int64_t values = call->rows * call->w.k;
  if (!is_quantised(call->w.format)) {
    if (kernels.packs_rows && call->rows > 1) carver->add(&call->packed_x, values);
    return;
  }
  const int64_t spans = values / span_of(call->w);
  carver->add(&call->rounded.codes, values / 4);
  carver->add(&call->rounded.scales, values / kActivationGroup);
  carver->add(&call->rounded.starts, spans);
  if (call->w.mins != nullptr) carver->add(&call->rounded.totals, spans);
}

}  // namespace ortloom

#endif  // ORTLOOM_LINEAR_CALL_H_
