// ortloom::DecoderLayer version 1 (kernels/layer_contract.py) as an ONNX Runtime kernel: what the
// seven nodes of a layer compute, by the same plans, as one region of the team.

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>
#include <string>

#include "attention_plan.h"
#include "linear_plan.h"
#include "node_inputs.h"
#include "op.h"
#include "packed_matrix.h"
#include "paged_attention.h"
#include "read_order.h"
#include "scratch.h"
#include "step_checks.h"
#include "team.h"

namespace ortloom {
namespace {

// The attention inputs are those of PagedAttention from key_cache to v_scale, in its order.
constexpr size_t kFirstPool = kKeyCache, kPools = kVScale - kKeyCache + 1;
constexpr size_t kMatrixInputs = 4;  // weight, scales, mins, bias
enum LayerInput : size_t {
  kX,
  kSkip,
  kAttentionGamma,
  kQkv,
  kAttentionInputs = kQkv + kMatrixInputs,
  kProjection = kAttentionInputs + kPools,
  kMlpGamma = kProjection + kMatrixInputs,
  kGateUp,
  kDown = kGateUp + kMatrixInputs,
  kLayerInputs = kDown + kMatrixInputs,
};
enum LayerOutput : size_t { kY, kSum, kFirstPoolOut };

// Values of a norm that one task takes.
constexpr int64_t kNormValues = 16'384;

struct LayerInputs {
  TensorView view[kLayerInputs];
  int64_t dims[kLayerInputs][TensorView::kMaxRank];
};

// Rows of a norm, cut into tasks.
struct NormPlan {
  const LinearKernels* kernels;
  NormCall call;
  int64_t rows, share;

  NormPlan(const LinearKernels& k, const NormCall& c, int64_t count)
      : kernels(&k), call(c), rows(count), share(std::max<int64_t>(1, kNormValues / c.width)) {}
  size_t tasks() const { return static_cast<size_t>((rows + share - 1) / share); }
  void task(size_t index) const {
    const int64_t first = static_cast<int64_t>(index) * share;
    kernels->norm(call, first, std::min(first + share, rows));
  }
};

class Phases {
 public:
  // `upcoming`: what threads fetch that wait for the last tasks of the phase.
  template <class Body>
  void add(size_t tasks, const Body& body, ReadAhead* upcoming) {
    if (tasks == 0) return;
    list_[count_++] = {
        tasks,
        [](void* user, size_t index) { (*static_cast<const Body*>(user))(index); },
        const_cast<Body*>(&body),
        upcoming,
    };
  }
  void run() const { team::run_phases(list_, count_); }

 private:
  team::Phase list_[team::kMaxPhases];
  size_t count_ = 0;
};

class DecoderLayer : public OpKernel {
 public:
  DecoderLayer(const Api& api, const abi::OrtKernelInfo* info, const Tier& tier, PoolType pool)
      : api_(api),
        linear_(*tier.linear),
        attention_kernels_(*tier.attention),
        attention_(api, info, pool),
        qkv_(api, info, "qkv_"),
        projection_(api, info, "o_"),
        gate_up_(api, info, "gate_up_"),
        down_(api, info, "down_"),
        activation_(activation_of(api, info, gate_up_, "gate_up_")),
        attention_epsilon_(api.attribute(info, "attention_norm_epsilon", 1e-6f)),
        mlp_epsilon_(api.attribute(info, "mlp_norm_epsilon", 1e-6f)),
        inputs_(api, info, kLayerInputs) {
    for (const float epsilon : {attention_epsilon_, mlp_epsilon_}) {
      if (!std::isfinite(epsilon) || epsilon < 0.0f) {
        throw OpError("the norms' epsilons must be finite and not negative");
      }
    }
    if (activation_ == Activation::kNone) throw OpError("activation is missing");
    must_match("gate_up_K", gate_up_.k(), "qkv_K", qkv_.k());
    must_match("o_N", projection_.n(), "qkv_K", qkv_.k());
    must_match("down_N", down_.n(), "qkv_K", qkv_.k());
    must_match("down_K", down_.k(), "gate_up_N / 2", gate_up_.n() / 2);
  }

  void compute(abi::OrtKernelContext* context) const override {
    LayerInputs in;
    inputs_.read(context, in.view, in.dims);
    const int64_t width = qkv_.k();
    check_tensor("x", in.view[kX], abi::kFloat, {-1, width}, "[T, K]");
    const int64_t rows = in.view[kX].shape[0];
    if (in.view[kSkip].present()) {
      check_tensor("skip", in.view[kSkip], abi::kFloat, {rows, width}, "[T, K]");
    }
    check_tensor("attention_gamma", in.view[kAttentionGamma], abi::kFloat, {width}, "[K]");
    check_tensor("mlp_gamma", in.view[kMlpGamma], abi::kFloat, {width}, "[K]");
    LinearCall qkv = linear("qkv_", qkv_, in, kQkv, rows);
    LinearCall projection = linear("o_", projection_, in, kProjection, rows);
    LinearCall gate_up = linear("gate_up_", gate_up_, in, kGateUp, rows);
    LinearCall down = linear("down_", down_, in, kDown, rows);
    gate_up.activation = activation_;

    // The projections' rows are known before they exist, so that attention is checked beforehand.
    Inputs attention_inputs;
    for (TensorView& view : attention_inputs.view) view.rank = TensorView::kAbsent;
    for (size_t i = 0; i < kPools; ++i) {
      attention_inputs.view[kFirstPool + i] = in.view[kAttentionInputs + i];
    }
    const int64_t qkv_shape[] = {rows, qkv_.n()};
    attention_inputs.view[kQuery].shape = qkv_shape;
    attention_inputs.view[kQuery].rank = 2;
    attention_inputs.view[kQuery].type = abi::kFloat;
    AttentionStep step;
    const StepSizes sizes = attention_.step(attention_inputs, &step);
    const int64_t attended = step.heads * step.head_size;
    must_match("o_K", projection_.k(), "num_heads * head size", attended);
    check_in_place(api_, context, attention_inputs, kFirstPoolOut, attention_.pool());
    const int64_t shape[] = {rows, width};
    float* y = static_cast<float*>(api_.output(context, kY, shape, 2));
    float* sum = static_cast<float*>(api_.output(context, kSum, shape, 2));
    if (rows == 0) return;

    float *residual = nullptr, *normed = nullptr, *packed = nullptr, *mixed = nullptr,
          *projected = nullptr, *gated = nullptr;
    std::optional<LinearPlan> plans[4];
    Carver carver;
    // The plans' own arrays are laid out with the rest, so they exist before both rounds.
    const auto carve = [&] {
      carver.add(&residual, rows * width);
      carver.add(&normed, rows * width);
      carver.add(&packed, rows * qkv_.n());
      carver.add(&mixed, rows * attended);
      carver.add(&projected, rows * width);
      carver.add(&gated, rows * down_.k());
    };
    carve();
    const LinearCall* calls[] = {&qkv, &projection, &gate_up, &down};
    for (size_t i = 0; i < 4; ++i) plans[i].emplace(linear_, *calls[i]);
    for (auto& plan : plans) plan->carve(&carver);
    carver.lay_out(call_scratch().reserve(carver.size()));
    carve();
    connect(&qkv, normed, packed);
    connect(&projection, mixed, projected);
    connect(&gate_up, normed, gated);
    connect(&down, gated, y);
    for (size_t i = 0; i < 4; ++i) {
      plans[i].emplace(linear_, *calls[i]);
      plans[i]->carve(&carver);
    }
    step.query = packed;
    step.key = packed + attended;
    step.value = step.key + step.kv_heads * step.head_size;
    step.output = mixed;
    AttentionPlan attention(attention_kernels_, step, sizes);
    const NormPlan first(linear_,
                         {floats(in, kX), floats(in, kSkip), floats(in, kAttentionGamma), normed,
                          residual, width, attention_epsilon_},
                         rows);
    const NormPlan second(
        linear_, {projected, residual, floats(in, kMlpGamma), normed, sum, width, mlp_epsilon_},
        rows);
    if (rows > kFetchRows) {
      run(first, second, plans, &attention, nullptr);
      return;
    }
    ReadAhead upcoming[4];
    for (size_t i = 0; i < 4; ++i) {
      const MatrixRanges weights(calls[i]->w);
      upcoming[i].set(weights.ranges, std::size(weights.ranges));
    }
    order_.enter(MatrixRanges(qkv.w));
    run(first, second, plans, &attention, upcoming);
    order_.leave();
  }

 private:
  static void must_match(const char* name, int64_t value, const char* other, int64_t wanted) {
    if (value == wanted) return;
    throw OpError(std::string(name) + " = " + std::to_string(value) + ", but " + other + " is " +
                  std::to_string(wanted));
  }

  static const float* floats(const LayerInputs& in, size_t index) {
    return static_cast<const float*>(in.view[index].data);
  }

  static void connect(LinearCall* call, const float* x, float* y) {
    call->x = x;
    call->y = y;
  }

  static LinearCall linear(const char* name, const PackedAttributes& attributes,
                           const LayerInputs& in, size_t first, int64_t rows) {
    LinearCall call = {};
    try {
      call.w = attributes.matrix(in.view[first], in.view[first + 1], in.view[first + 2]);
      const TensorView& bias = in.view[first + 3];
      if (bias.present()) {
        check_tensor("bias", bias, abi::kFloat, {attributes.n()}, "[N]");
        call.bias = static_cast<const float*>(bias.data);
      }
    } catch (const OpError& error) {
      throw OpError(name + std::string(error.what()), error.code());
    }
    call.rows = rows;
    return call;
  }

  // The few values of one or two rows are cheaper to round where the norm has just left them than
  // to hand on: both are one task of one phase.
  // `upcoming` is the matrices' weights, or null where it does not pay to fetch them.
  void run(const NormPlan& first, const NormPlan& second, std::optional<LinearPlan> (&plans)[4],
           AttentionPlan* attention, ReadAhead* upcoming) const {
    const auto weights = [&](size_t matrix) {
      return upcoming == nullptr ? nullptr : upcoming + matrix;
    };
    const auto normalise = [&](const NormPlan& norm, const LinearPlan& plan) {
      return [&norm, &plan](size_t index) {
        norm.task(index);
        if (norm.tasks() == 1 && plan.prepare_tasks() == 1) plan.prepare(0);
      };
    };
    const auto left = [](const NormPlan& norm, const LinearPlan& plan) {
      return norm.tasks() == 1 && plan.prepare_tasks() == 1 ? 0 : plan.prepare_tasks();
    };
    const auto prepare = [](const LinearPlan& plan) {
      return [&plan](size_t index) { plan.prepare(index); };
    };
    const auto multiply = [](const LinearPlan& plan) {
      return [&plan](size_t index) { plan.task(index); };
    };
    const LinearPlan &qkv = *plans[0], &projection = *plans[1], &gate_up = *plans[2],
                     &down = *plans[3];
    const auto norm_first = normalise(first, qkv), norm_second = normalise(second, gate_up);
    const auto prepare_qkv = prepare(qkv), prepare_projection = prepare(projection),
               prepare_gate_up = prepare(gate_up), prepare_down = prepare(down);
    const auto multiply_qkv = multiply(qkv), multiply_projection = multiply(projection),
               multiply_gate_up = multiply(gate_up), multiply_down = multiply(down);
    const auto store = [&](size_t index) { attention->store(index); };
    const auto attend = [&](size_t index) { attention->task(index); };
    const auto merge = [&](size_t index) { attention->merge(index); };
    Phases phases;
    phases.add(first.tasks(), norm_first, weights(0));
    phases.add(left(first, qkv), prepare_qkv, weights(0));
    phases.add(qkv.tasks(), multiply_qkv, weights(1));
    phases.add(attention->store_tasks(), store, weights(1));
    phases.add(attention->tasks(), attend, weights(1));
    phases.add(attention->merge_tasks(), merge, weights(1));
    phases.add(projection.prepare_tasks(), prepare_projection, weights(1));
    phases.add(projection.tasks(), multiply_projection, weights(2));
    phases.add(second.tasks(), norm_second, weights(2));
    phases.add(left(second, gate_up), prepare_gate_up, weights(2));
    phases.add(gate_up.tasks(), multiply_gate_up, weights(3));
    phases.add(down.prepare_tasks(), prepare_down, weights(3));
    phases.add(down.tasks(), multiply_down, nullptr);
    phases.run();
  }

  Api api_;
  const LinearKernels& linear_;
  const AttentionKernels& attention_kernels_;
  AttentionAttributes attention_;
  PackedAttributes qkv_, projection_, gate_up_, down_;
  Activation activation_;
  float attention_epsilon_, mlp_epsilon_;
  NodeInputs inputs_;
  ReadOrder order_;
};

template <PoolType P>
constexpr OpEntry decoder_layer_op(const char* name) {
  return {
      name,
      kLayerInputs,
      P == PoolType::kInt8 ? 6u : 4u,
      [](size_t input) -> int32_t {
        if (input >= kAttentionInputs && input < kProjection) {
          return element_type(input - kAttentionInputs + kFirstPool, P);
        }
        for (const size_t matrix : {kQkv, kProjection, kGateUp, kDown}) {
          if (input >= matrix && input < matrix + 3) return abi::kAnyType;
        }
        return abi::kFloat;
      },
      [](size_t output) -> int32_t {
        const bool pool = output == kFirstPoolOut || output == kFirstPoolOut + 1;
        return pool ? element_type(kKeyCache, P) : int32_t{abi::kFloat};
      },
      [](size_t input) {
        if (input == kSkip) return true;
        if (input >= kAttentionInputs && input < kProjection) {
          return is_optional(input - kAttentionInputs + kFirstPool);
        }
        for (const size_t matrix : {kQkv, kProjection, kGateUp, kDown}) {
          if (input > matrix && input < matrix + kMatrixInputs) return true;
        }
        return false;
      },
      [](size_t) { return false; },
      [](const Api& api, const abi::OrtKernelInfo* info,
         const Tier& tier) -> std::unique_ptr<OpKernel> {
        return std::make_unique<DecoderLayer>(api, info, tier, P);
      },
  };
}

}  // namespace

const OpEntry kDecoderLayerOp = decoder_layer_op<PoolType::kFloat32>("DecoderLayer");
const OpEntry kDecoderLayerFloat16Op =
    decoder_layer_op<PoolType::kFloat16>("DecoderLayerFloat16");
const OpEntry kDecoderLayerBFloat16Op =
    decoder_layer_op<PoolType::kBFloat16>("DecoderLayerBFloat16");
const OpEntry kDecoderLayerInt8Op = decoder_layer_op<PoolType::kInt8>("DecoderLayerInt8");

}  // namespace ortloom
