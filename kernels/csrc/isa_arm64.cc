// The tiers of arm64 and what the system says of them: the auxiliary vector on Linux, sysctl on
// Darwin.

#include "isa.h"

#if defined(ORTLOOM_ARM64_TIERS)

#if defined(__linux__)
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace ortloom {
namespace {

struct Arm64 {
  bool neon = false, dotprod = false, i8mm = false;

  Arm64() {
#if defined(__linux__)
    // Bit numbers of the kernel's ABI; older C libraries do not name them all.
    const unsigned long words[] = {getauxval(AT_HWCAP), getauxval(AT_HWCAP2)};
    neon = words[0] >> 1 & 1;
    dotprod = words[0] >> 20 & 1;
    i8mm = words[1] >> 13 & 1;
#elif defined(__APPLE__)
    neon = true;  // every arm64 Mac has it, and there is no name to ask for
    dotprod = has("hw.optional.arm.FEAT_DotProd");
    i8mm = has("hw.optional.arm.FEAT_I8MM");
#endif
  }

#if defined(__APPLE__)
  static bool has(const char* name) {
    int value = 0;
    size_t size = sizeof(value);
    return sysctlbyname(name, &value, &size, nullptr, 0) == 0 && value != 0;
  }
#endif
};

}  // namespace

int list_processor_tiers(Tier* list) {
  const Arm64 cpu;
  std::string neon, dotprod, i8mm;
  need(&neon, cpu.neon, "asimd");
  dotprod = neon;
  need(&dotprod, cpu.dotprod, "asimddp");
  i8mm = dotprod;
  need(&i8mm, cpu.i8mm, "i8mm");
  int count = 0;
  list[count++] = {"i8mm", &kNeonKernels, &kI8mmLinear, i8mm};
  list[count++] = {"dotprod", &kNeonKernels, &kDotprodLinear, dotprod};
  list[count++] = {"neon", &kNeonKernels, &kNeonLinear, neon};
  return count;
}

}  // namespace ortloom

#endif
