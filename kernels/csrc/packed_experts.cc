// ortloom::PackedExperts version 1 (kernels/experts_contract.py) as an ONNX Runtime kernel.
//
// The (token, slot) pairs are grouped by expert; each routed expert is two packed linears over its
// rows, run by the kernels of PackedLinear in one parallel region for all experts. Weights of
// experts that no token names are never touched.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "linear.h"
#include "linear_call.h"
#include "node_inputs.h"
#include "op.h"
#include "packed_matrix.h"
#include "scratch.h"
#include "team.h"

namespace ortloom {
namespace {

enum Input : size_t {
  kX, kIds, kWeights,
  kGateUp, kGateUpScales, kGateUpMins,
  kDown, kDownScales, kDownMins,
  kInputCount
};

// As in PackedLinear: work and values below which a region stays on the calling thread, rows that
// a task keeps by it, tasks a thread gets.
constexpr int64_t kInlineWork = 100'000;
constexpr int64_t kInlineValues = 16'384;
constexpr int64_t kTaskRows = 96;
constexpr int64_t kTasksPerThread = 4;
// Tokens of a task that adds up what the experts gave.
constexpr int64_t kTaskTokens = 8;
constexpr int64_t kMaxExperts = 1 << 16;

// The matrices of all experts, one behind the other.
class ExpertMatrices {
 public:
  ExpertMatrices(const char* name, const Api& api, const abi::OrtKernelInfo* info,
                 int64_t experts, int64_t n, int64_t k)
      : name_(name), experts_(experts), attributes_(read(name, api, info, n, k)) {}

  // The matrix of expert 0, after checks of type, shape and alignment; throws OpError.
  PackedMatrix first(TensorView weight, TensorView scales, TensorView mins) const {
    for (TensorView* view : {&weight, &scales, &mins}) {
      if (!view->present()) continue;
      if (view->rank < 1 || view->shape[0] != experts_) {
        throw OpError(name_ + ": a weight input has shape " + shape_text(*view) +
                      ", but must begin with " + std::to_string(experts_) + " experts");
      }
      ++view->shape;
      --view->rank;
    }
    try {
      return attributes_.matrix(weight, scales, mins);
    } catch (const OpError& error) {
      throw OpError(name_ + ", of each expert: " + error.what());
    }
  }

 private:
  static PackedAttributes read(const std::string& name, const Api& api,
                               const abi::OrtKernelInfo* info, int64_t n, int64_t k) {
    const std::string format = api.attribute(info, (name + "_format").c_str(), std::string());
    const int64_t block = api.attribute(info, (name + "_block_size").c_str(), int64_t{0});
    try {
      return PackedAttributes(format, n, k, block);
    } catch (const OpError& error) {
      throw OpError(name + ": " + error.what());
    }
  }

  std::string name_;
  int64_t experts_;
  PackedAttributes attributes_;
};

int64_t element_bits(Format format) {
  switch (format) {
    case Format::kF32: return 32;
    case Format::kU8: return 8;
    case Format::kU4: return 4;
    default: return 16;
  }
}

// The same matrix `expert` places further on.
PackedMatrix at_expert(PackedMatrix w, int64_t expert) {
  const int64_t values = panels_of(w) * kPanel * w.k;
  w.weight = static_cast<const uint8_t*>(w.weight) + expert * (values * element_bits(w.format) / 8);
  if (is_quantised(w.format)) {
    const int64_t bytes = values / w.block_size * (w.half_scales ? 2 : 4);
    w.scales = static_cast<const uint8_t*>(w.scales) + expert * bytes;
    if (w.mins != nullptr) w.mins = static_cast<const uint8_t*>(w.mins) + expert * bytes;
  }
  return w;
}

// The (token, slot) pairs in the order of their experts; pair = token * slots + slot.
struct Groups {
  std::vector<int64_t> experts;  // that a token names, ascending
  std::vector<int64_t> begins;   // first place of each expert, and the number of places
  std::vector<int64_t> pairs;    // of each place; ascending within an expert
  std::vector<int64_t> places;   // of each pair

  Groups(const int64_t* ids, int64_t count, int64_t all) : pairs(count), places(count) {
    std::vector<int64_t> next(all + 1);
    for (int64_t i = 0; i < count; ++i) ++next[ids[i] + 1];
    for (int64_t e = 0; e < all; ++e) {
      if (next[e + 1] > 0) {
        experts.push_back(e);
        begins.push_back(next[e]);
      }
      next[e + 1] += next[e];
    }
    begins.push_back(count);
    for (int64_t i = 0; i < count; ++i) {
      places[i] = next[ids[i]]++;
      pairs[places[i]] = i;
    }
  }
};

struct Task {
  const LinearCall* call;
  int64_t tile, tile_end, group, group_end;
};

class PackedExperts : public OpKernel {
 public:
  PackedExperts(const Api& api, const abi::OrtKernelInfo* info, const LinearKernels& kernels)
      : api_(api),
        kernels_(kernels),
        experts_(size(api, info, "experts", kMaxExperts)),
        width_(size(api, info, "K", int64_t{1} << 28)),
        inner_(size(api, info, "I", int64_t{1} << 27)),
        gate_up_("gate_up", api, info, experts_, 2 * inner_, width_),
        down_("down", api, info, experts_, width_, inner_),
        activation_(activation_named(api.attribute(info, "activation", std::string("silu")))),
        inputs_(api, info, kInputCount) {
    if (activation_ == Activation::kNone) throw OpError("activation is empty");
    if (inner_ % kPanel != 0) {
      throw OpError("I = " + std::to_string(inner_) + " must be a multiple of 16");
    }
  }

  void compute(abi::OrtKernelContext* context) const override {
    TensorView view[kInputCount];
    int64_t dims[kInputCount][TensorView::kMaxRank];
    inputs_.read(context, view, dims);
    check_tensor("x", view[kX], abi::kFloat, {-1, width_}, "[T, K]");
    const int64_t tokens = view[kX].shape[0];
    check_tensor("ids", view[kIds], abi::kInt64, {tokens, -1}, "[T, slots]");
    const int64_t slots = view[kIds].shape[1];
    check_tensor("weights", view[kWeights], abi::kFloat, {tokens, slots}, "[T, slots]");
    const PackedMatrix gate_up =
        gate_up_.first(view[kGateUp], view[kGateUpScales], view[kGateUpMins]);
    const PackedMatrix down = down_.first(view[kDown], view[kDownScales], view[kDownMins]);
    const auto* ids = static_cast<const int64_t*>(view[kIds].data);
    for (int64_t i = 0; i < tokens * slots; ++i) {
      if (ids[i] >= 0 && ids[i] < experts_) continue;
      throw OpError("ids[" + std::to_string(i / slots) + ", " + std::to_string(i % slots) +
                    "] = " + std::to_string(ids[i]) + " is outside 0 .. " +
                    std::to_string(experts_ - 1));
    }
    if (slots < 1) throw OpError("ids has shape " + shape_text(view[kIds]) + ": no slots");
    const int64_t shape[] = {tokens, width_};
    auto* y = static_cast<float*>(api_.output(context, 0, shape, 2));
    if (tokens == 0) return;

    const Groups groups(ids, tokens * slots, experts_);
    const auto* x = static_cast<const float*>(view[kX].data);
    std::vector<LinearCall> first = calls(groups, gate_up, activation_);
    std::vector<LinearCall> second = calls(groups, down, Activation::kNone);
    Carver carver;
    float *given = nullptr, *inner = nullptr, *rows = nullptr;
    carve_all(&first, &second, tokens * slots, &carver, &given, &inner, &rows);
    carver.lay_out(call_scratch().reserve(carver.size()));
    carve_all(&first, &second, tokens * slots, &carver, &given, &inner, &rows);
    for (size_t i = 0; i < first.size(); ++i) {
      const int64_t begin = groups.begins[i];
      // One row is read where it lies.
      first[i].x = first[i].rows == 1 ? x + groups.pairs[begin] / slots * width_
                                      : given + begin * width_;
      first[i].y = inner + begin * inner_;
      second[i].x = first[i].y;
      second[i].y = rows + begin * width_;
    }
    prepare(first, [&](const LinearCall& call, int64_t row, int64_t end) {
      const int64_t begin = groups.begins[&call - first.data()];
      for (; row < end && call.rows > 1; ++row) {
        std::memcpy(given + (begin + row) * width_,
                    x + groups.pairs[begin + row] / slots * width_,
                    static_cast<size_t>(width_) * sizeof(float));
      }
    });
    multiply(first);
    prepare(second, [](const LinearCall&, int64_t, int64_t) {});
    multiply(second);
    add_up(groups, static_cast<const float*>(view[kWeights].data), rows, tokens, slots, y);
  }

 private:
  static int64_t size(const Api& api, const abi::OrtKernelInfo* info, const char* name,
                      int64_t most) {
    const int64_t value = api.attribute(info, name, int64_t{0});
    if (value < 1 || value > most) {
      throw OpError(std::string(name) + " = " + std::to_string(value) + " must be 1 to " +
                    std::to_string(most));
    }
    return value;
  }

  // A linear for each routed expert; where its rows lie is not known yet.
  std::vector<LinearCall> calls(const Groups& groups, const PackedMatrix& w,
                                Activation activation) const {
    const int64_t tile = is_quantised(w.format) ? kernels_.quantised_rows : kernels_.floating_rows;
    std::vector<LinearCall> made(groups.experts.size());
    for (size_t i = 0; i < made.size(); ++i) {
      made[i].w = at_expert(w, groups.experts[i]);
      made[i].activation = activation;
      made[i].rows = groups.begins[i + 1] - groups.begins[i];
      made[i].tiles = ceil_div(made[i].rows, tile);
    }
    return made;
  }

  // `rows`, what the down projections give, takes the place of `given`, which is read by then.
  void carve_all(std::vector<LinearCall>* first, std::vector<LinearCall>* second, int64_t pairs,
                 Carver* carver, float** given, float** inner, float** rows) const {
    carver->add(given, pairs * width_);
    carver->add(inner, pairs * inner_);
    *rows = *given;
    for (LinearCall& call : *first) ortloom::carve(kernels_, &call, carver);
    for (LinearCall& call : *second) ortloom::carve(kernels_, &call, carver);
  }

  // Puts the rows of all calls into the order of the kernels, after `gather`(call, row, end) has
  // fetched them.
  template <class Gather>
  void prepare(const std::vector<LinearCall>& all, const Gather& gather) const {
    std::vector<Task> tasks;
    int64_t values = 0;
    for (const LinearCall& call : all) {
      if (call.rows == 1 && !is_quantised(call.w.format)) continue;
      values += call.rows * call.w.k;
      for (int64_t tile = 0; tile < call.tiles; ++tile) {
        tasks.push_back({&call, tile, tile + 1, 0, 0});
      }
    }
    const size_t step = values <= kInlineValues ? std::max<size_t>(1, tasks.size()) : 1;
    team::run((tasks.size() + step - 1) / step, [&](size_t index) {
      for (size_t i = index * step; i < std::min(tasks.size(), (index + 1) * step); ++i) {
        const Task& task = tasks[i];
        gather(*task.call, tile_row(*task.call, task.tile), tile_row(*task.call, task.tile_end));
        kernels_.prepare(*task.call, task.tile, task.tile_end);
      }
    });
  }

  void multiply(const std::vector<LinearCall>& all) const {
    int64_t work = 0, chunks_in_all = 0;
    for (const LinearCall& call : all) {
      work += call.rows * call.w.k * call.w.n;
      chunks_in_all += std::min(call.tiles, ceil_div(call.rows, kTaskRows));
    }
    const bool alone = work < kInlineWork;
    const int64_t wanted =
        alone ? 1 : ceil_div(team::threads() * kTasksPerThread, chunks_in_all);
    std::vector<Task> tasks;
    for (const LinearCall& call : all) {
      const int64_t groups = groups_of(call), share = ceil_div(groups, wanted);
      const int64_t chunks = std::min(call.tiles, ceil_div(call.rows, kTaskRows));
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        const int64_t tile = call.tiles * chunk / chunks;
        const int64_t end = call.tiles * (chunk + 1) / chunks;
        for (int64_t group = 0; group < groups; group += share) {
          tasks.push_back({&call, tile, end, group, std::min(group + share, groups)});
        }
      }
    }
    const size_t step = alone ? tasks.size() : 1;
    team::run((tasks.size() + step - 1) / step, [&](size_t index) {
      for (size_t i = index * step; i < std::min(tasks.size(), (index + 1) * step); ++i) {
        const Task& task = tasks[i];
        const size_t bytes = kernels_.task_bytes(*task.call, task.tile, task.tile_end);
        kernels_.task(*task.call, task.tile, task.tile_end, task.group, task.group_end,
                      task_scratch().reserve(bytes));
      }
    });
  }

  // y[t] = the sum of weight * row over the slots of token t, in ascending order of the slots.
  void add_up(const Groups& groups, const float* weights, const float* rows, int64_t tokens,
              int64_t slots, float* y) const {
    team::run(static_cast<size_t>(ceil_div(tokens, kTaskTokens)), [&](size_t index) {
      const int64_t begin = static_cast<int64_t>(index) * kTaskTokens;
      for (int64_t t = begin; t < std::min(begin + kTaskTokens, tokens); ++t) {
        float* out = y + t * width_;
        for (int64_t slot = 0; slot < slots; ++slot) {
          const float* row = rows + groups.places[t * slots + slot] * width_;
          const float weight = weights[t * slots + slot];
          if (slot == 0) {
            for (int64_t i = 0; i < width_; ++i) out[i] = weight * row[i];
          } else {
            for (int64_t i = 0; i < width_; ++i) out[i] += weight * row[i];
          }
        }
      }
    });
  }

  Api api_;
  const LinearKernels& kernels_;
  int64_t experts_, width_, inner_;
  ExpertMatrices gate_up_, down_;
  Activation activation_;
  NodeInputs inputs_;
};

}  // namespace

const OpEntry kPackedExpertsOp = {
    "PackedExperts",
    kInputCount,
    1,
    [](size_t i) -> int32_t {
      if (i == kIds) return abi::kInt64;
      return i == kX || i == kWeights ? abi::kFloat : abi::kAnyType;
    },
    [](size_t) -> int32_t { return abi::kFloat; },
    [](size_t i) {
      return i == kGateUpScales || i == kGateUpMins || i == kDownScales || i == kDownMins;
    },
    [](size_t) { return false; },
    [](const Api& api, const abi::OrtKernelInfo* info,
       const Tier& tier) -> std::unique_ptr<OpKernel> {
      return std::make_unique<PackedExperts>(api, info, *tier.linear);
    },
};

}  // namespace ortloom
