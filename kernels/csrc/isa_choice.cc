// Which tier is used: what the environment asks for, and the refusal of what cannot be had.
//
//   ORTLOOM_CPU_ISA       a tier's name, and nothing else is read then; or auto
//   VT_CPU_MATMUL_TIER    a tier's name
//   VT_CPU_Q8_DOT         auto, portable (no dot product instruction of arm64), sdot
//   VT_CPU_QUANT_MMLA     auto, 0 (no int8 matrix instruction of arm64), 1
//   VT_CPU_QUANT_REPACK   the same: here it is the matrix instruction that repacked weights are for
//
// The VT_ names narrow the choice one after the other; "" is "auto".

#include <cstdlib>
#include <cstring>

#include "isa.h"
#include "ort_api.h"

namespace ortloom {
namespace {

struct Wish {
  const char* variable;
  const char* value;
};

Wish wish_of(const char* variable) {
  const char* value = std::getenv(variable);
  return {variable, value != nullptr && *value != '\0' ? value : nullptr};
}

bool is_one_of(const char* value, std::initializer_list<const char*> words) {
  for (const char* word : words) {
    if (std::strcmp(value, word) == 0) return true;
  }
  return false;
}

[[noreturn]] void refuse(const Wish& wish, const std::string& reason) {
  throw OpError(std::string(wish.variable) + "=" + wish.value + reason, abi::kFail);
}

// The tier `name`, which must be one of this binary and one that runs.
const Tier* named(const Wish& wish, const char* name, bool by_name) {
  int count = 0;
  const Tier* list = tiers(&count);
  std::string choices;
  for (int i = count - 1; i >= 0; --i) {
    if (std::strcmp(list[i].name, name) == 0) {
      if (list[i].lacking.empty()) return &list[i];
      refuse(wish, ": this machine lacks " + list[i].lacking);
    }
    choices += (choices.empty() ? "" : ", ") + std::string(list[i].name);
  }
  if (by_name) refuse(wish, " is unknown; choices: " + choices);
  refuse(wish, std::string(" needs the tier ") + name + ", which is not among this binary's: " +
                   choices);
}

bool uses_matrices(const Tier& tier) { return std::strcmp(tier.name, "i8mm") == 0; }
bool uses_dots(const Tier& tier) {
  return uses_matrices(tier) || std::strcmp(tier.name, "dotprod") == 0;
}

// What the VT_ names leave: one tier if any of them forces one, else all without what they forbid.
class Choice {
 public:
  void force(const Wish& wish, const char* name, bool by_name) {
    const Tier* tier = named(wish, name, by_name);
    if (forced_ != nullptr && forced_ != tier) {
      refuse(wish, std::string(" asks for the tier ") + name + ", but " + by_.variable + "=" +
                       by_.value + " for " + forced_->name);
    }
    forced_ = tier;
    by_ = wish;
  }
  void forbid_dots(const Wish& wish) { no_dots_ = wish; }
  void forbid_matrices(const Wish& wish) { no_matrices_ = wish; }

  const Tier& tier() const {
    if (forced_ != nullptr) {
      check(uses_dots(*forced_), no_dots_);
      check(uses_matrices(*forced_), no_matrices_);
      return *forced_;
    }
    int count = 0;
    const Tier* best = tiers(&count);
    while (!best->lacking.empty() || (no_dots_.value != nullptr && uses_dots(*best)) ||
           (no_matrices_.value != nullptr && uses_matrices(*best))) {
      ++best;  // portable, the last one, has neither
    }
    return *best;
  }

 private:
  void check(bool uses, const Wish& forbidden) const {
    if (!uses || forbidden.value == nullptr) return;
    refuse(by_, std::string(" asks for the tier ") + forced_->name + ", which " +
                    forbidden.variable + "=" + forbidden.value + " forbids");
  }

  const Tier* forced_ = nullptr;
  Wish by_ = {};
  Wish no_dots_ = {}, no_matrices_ = {};
};

}  // namespace

const Tier& choose_tier() {
  const Wish own = wish_of("ORTLOOM_CPU_ISA");
  if (own.value != nullptr && !is_one_of(own.value, {"auto"})) return *named(own, own.value, true);
  Choice choice;
  const Wish all = wish_of("VT_CPU_MATMUL_TIER");
  if (all.value != nullptr && !is_one_of(all.value, {"auto"})) choice.force(all, all.value, true);
  const Wish dot = wish_of("VT_CPU_Q8_DOT");
  if (dot.value != nullptr && !is_one_of(dot.value, {"auto"})) {
    if (is_one_of(dot.value, {"sdot", "dotprod"})) {
      choice.force(dot, "dotprod", false);
    } else if (is_one_of(dot.value, {"portable", "neon"})) {
      choice.forbid_dots(dot);
    } else {
      refuse(dot, " is unknown; choices: auto, portable, sdot");
    }
  }
  for (const char* variable : {"VT_CPU_QUANT_MMLA", "VT_CPU_QUANT_REPACK"}) {
    const Wish wish = wish_of(variable);
    if (wish.value == nullptr || is_one_of(wish.value, {"auto"})) continue;
    if (is_one_of(wish.value, {"1", "on", "true", "i8mm"})) {
      choice.force(wish, "i8mm", false);
    } else if (is_one_of(wish.value, {"0", "off", "false"})) {
      choice.forbid_matrices(wish);
    } else {
      refuse(wish, " is unknown; choices: auto, 0, 1");
    }
  }
  return choice.tier();
}

}  // namespace ortloom
