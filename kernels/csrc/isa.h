// Instruction set tiers: which exist in this binary, which the CPU can run, which one is used.
#ifndef ORTLOOM_ISA_H_
#define ORTLOOM_ISA_H_

#include <string>

#include "attention.h"
#include "linear.h"

namespace ortloom {

struct Tier {
  const char* name;
  const AttentionKernels* attention;
  const LinearKernels* linear;
  // Empty if this CPU and operating system can run the tier, else what is lacking.
  std::string lacking;
};

// All tiers of this binary, best first; the last one, portable, always runs.
constexpr int kMaxTiers = 4;
const Tier* tiers(int* count);

// The tier ORTLOOM_CPU_ISA (or its alias VT_CPU_MATMUL_TIER) names, else the best that runs.
// Throws OpError if the name is unknown or the CPU lacks the tier. Reads the environment each time.
const Tier& choose_tier();

}  // namespace ortloom

#endif  // ORTLOOM_ISA_H_
