// Instruction set tiers: which exist in this binary, which the CPU can run, which one is used.
#ifndef ORTLOOM_ISA_H_
#define ORTLOOM_ISA_H_

#include <string>

#include "attention.h"
#include "linear.h"

namespace ortloom {

extern const AttentionKernels kSse2Kernels;
extern const AttentionKernels kSse2F16cKernels;
extern const AttentionKernels kNeonKernels;

struct Tier {
  const char* name;
  const AttentionKernels* attention;
  const LinearKernels* linear;
  // Empty if this CPU and operating system can run the tier, else what is lacking.
  std::string lacking;
};

// All tiers of this binary, best first; the last one, portable, always runs.
constexpr int kMaxTiers = 8;
const Tier* tiers(int* count);

// The processor's own tiers, best first, portable not among them (isa_x86.cc, isa_arm64.cc).
int list_processor_tiers(Tier* list);

// The tier that the environment names (isa_choice.cc says how), else the best that runs. Throws
// OpError if a name is unknown, the CPU lacks the tier, or names contradict each other. Reads the
// environment each time.
const Tier& choose_tier();

// Adds `name` to what is lacking, unless it is there.
inline void need(std::string* list, bool there, const char* name) {
  if (there) return;
  if (!list->empty()) *list += ", ";
  *list += name;
}

}  // namespace ortloom

#endif  // ORTLOOM_ISA_H_
