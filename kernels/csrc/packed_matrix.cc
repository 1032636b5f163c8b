#include "packed_matrix.h"

#include <cstdint>

#include "linear_call.h"

namespace ortloom {
namespace {

struct FormatEntry {
  const char* name;
  Format format;
  int32_t element;
  size_t alignment;
};

constexpr FormatEntry kFormats[] = {
    {"f32", Format::kF32, abi::kFloat, 4},   {"f16", Format::kF16, abi::kFloat16, 2},
    {"bf16", Format::kBf16, abi::kBfloat16, 2}, {"u8", Format::kU8, abi::kUint8, 1},
    {"u4", Format::kU4, abi::kUint8, 1},
};

// Larger matrices would let products of sizes leave 64 bits.
constexpr int64_t kMaxSize = int64_t{1} << 28;

const char* type_name(int32_t type) {
  switch (type) {
    case abi::kFloat: return "float32";
    case abi::kUint8: return "uint8";
    case abi::kInt32: return "int32";
    case abi::kInt64: return "int64";
    case abi::kFloat16: return "float16";
    case abi::kBfloat16: return "bfloat16";
    default: return "another type";
  }
}

const FormatEntry& entry_of(Format format) {
  for (const FormatEntry& entry : kFormats) {
    if (entry.format == format) return entry;
  }
  return kFormats[0];
}

void check_alignment(const char* name, const TensorView& view, size_t alignment) {
  if (reinterpret_cast<uintptr_t>(view.data) % alignment != 0) {
    throw OpError(std::string(name) + " is misaligned: its address must be a multiple of " +
                  std::to_string(alignment));
  }
}

}  // namespace

std::string shape_text(const TensorView& view) {
  std::string out = "[";
  for (size_t i = 0; i < view.rank; ++i) {
    out += (i ? ", " : "") + std::to_string(view.shape[i]);
  }
  return out + "]";
}

void check_tensor(const char* name, const TensorView& view, int32_t type,
                  std::initializer_list<int64_t> shape, const char* rule) {
  if (!view.present()) throw OpError(std::string(name) + " is missing");
  if (view.type != type) {
    throw OpError(std::string(name) + " is " + type_name(view.type) + ", but must be " +
                  type_name(type));
  }
  bool good = view.rank == shape.size();
  size_t axis = 0;
  for (const int64_t size : shape) {
    good = good && (size < 0 || view.shape[axis] == size);
    ++axis;
  }
  if (good) return;
  std::string wanted;
  for (const int64_t size : shape) {
    wanted += (wanted.empty() ? "" : ", ") + (size < 0 ? std::string("any") : std::to_string(size));
  }
  throw OpError(std::string(name) + " has shape " + shape_text(view) + ", but must be [" + wanted +
                "] (" + rule + ")");
}

Activation activation_of(const Api& api, const abi::OrtKernelInfo* info,
                         const PackedAttributes& attributes, const char* prefix) {
  const Activation activation =
      activation_named(api.attribute(info, "activation", std::string()));
  if (activation != Activation::kNone && attributes.n() % (2 * kPanel) != 0) {
    throw OpError(prefix + ("N = " + std::to_string(attributes.n())) +
                  " must be a multiple of 32 with an activation (gate and up projection)");
  }
  return activation;
}

PackedAttributes::PackedAttributes(const Api& api, const abi::OrtKernelInfo* info,
                                   const std::string& prefix)
    : PackedAttributes(api.attribute(info, (prefix + "format").c_str(), std::string()),
                       api.attribute(info, (prefix + "N").c_str(), int64_t{0}),
                       api.attribute(info, (prefix + "K").c_str(), int64_t{0}),
                       api.attribute(info, (prefix + "block_size").c_str(), int64_t{0}), prefix) {}

PackedAttributes::PackedAttributes(const std::string& format, int64_t n, int64_t k,
                                   int64_t block_size, const std::string& prefix)
    : format_name_(format), n_(n), k_(k), block_size_(block_size) {
  bool known = false;
  for (const FormatEntry& entry : kFormats) {
    if (format_name_ != entry.name) continue;
    format_ = entry.format;
    known = true;
  }
  if (!known) {
    throw OpError(prefix + "format \"" + format_name_ +
                  "\" is unknown; choices: f32, f16, bf16, u8, u4");
  }
  if (n_ < 1 || k_ < 1 || n_ > kMaxSize || k_ > kMaxSize) {
    throw OpError(prefix + "N = " + std::to_string(n_) + " and " + prefix +
                  "K = " + std::to_string(k_) +
                  " must be 1 to " + std::to_string(kMaxSize));
  }
  if (!is_quantised(format_)) {
    if (block_size_ != 0) {
      throw OpError(prefix + "block_size = " + std::to_string(block_size_) + ", but format " +
                    format_name_ + " has no blocks: it must be 0");
    }
    return;
  }
  bool size_known = false;
  for (const int64_t size : {16, 32, 64, 128, 256}) size_known = size_known || size == block_size_;
  if (!size_known) {
    throw OpError(prefix + "block_size = " + std::to_string(block_size_) +
                  " is not one of 16, 32, 64, 128, 256");
  }
  if (k_ % block_size_ != 0 || k_ % kActivationGroup != 0) {
    throw OpError(prefix + "K = " + std::to_string(k_) +
                  " must be a multiple of 32 and of block_size = " + std::to_string(block_size_));
  }
}

int32_t PackedAttributes::block_type(const char* name, const TensorView& view) const {
  if (!view.present()) {
    throw OpError(std::string(name) + " is missing: format " + format_name_ + " needs it");
  }
  if (view.type != abi::kFloat && view.type != abi::kFloat16) {
    throw OpError(std::string(name) + " is " + type_name(view.type) +
                  ", but must be float16 or float32");
  }
  return view.type;
}

PackedMatrix PackedAttributes::matrix(const TensorView& weight, const TensorView& scales,
                                      const TensorView& mins) const {
  PackedMatrix w = {};
  w.format = format_;
  w.n = n_;
  w.k = k_;
  w.block_size = block_size_;
  const int64_t panels = panels_of(w);
  const FormatEntry& entry = entry_of(format_);
  if (format_ == Format::kU8) {
    check_tensor("weight", weight, entry.element, {panels, k_ / 4, kPanel, 4}, "[P, K/4, 16, 4]");
  } else if (format_ == Format::kU4) {
    check_tensor("weight", weight, entry.element, {panels, k_ / 8, kPanel, 4}, "[P, K/8, 16, 4]");
  } else {
    check_tensor("weight", weight, entry.element, {panels, k_, kPanel}, "[P, K, 16]");
  }
  check_alignment("weight", weight, entry.alignment);
  w.weight = weight.data;
  if (!is_quantised(format_)) {
    if (scales.present() || mins.present()) {
      throw OpError("format " + format_name_ + " has neither scales nor mins");
    }
    return w;
  }
  const int32_t type = block_type("scales", scales);
  const size_t alignment = type == abi::kFloat16 ? 2 : 4;
  const char* rule = "[P, K/block_size, 16]";
  check_tensor("scales", scales, type, {panels, k_ / block_size_, kPanel}, rule);
  check_alignment("scales", scales, alignment);
  w.half_scales = type == abi::kFloat16;
  w.scales = scales.data;
  if (mins.present()) {
    check_tensor("mins", mins, type, {panels, k_ / block_size_, kPanel}, rule);
    check_alignment("mins", mins, alignment);
    w.mins = mins.data;
  }
  return w;
}

}  // namespace ortloom
