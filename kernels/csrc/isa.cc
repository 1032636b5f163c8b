#include "isa.h"

#include <cstdlib>
#include <cstring>

#include "ort_api.h"

#if defined(ORTLOOM_X86_TIERS)
#include <cpuid.h>
#endif

namespace ortloom {
namespace {

#if defined(ORTLOOM_X86_TIERS)
struct X86 {
  unsigned leaf1_ecx = 0;
  unsigned leaf7_ebx = 0;
  unsigned leaf7_ecx = 0;
  unsigned xcr0 = 0;

  X86() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) leaf1_ecx = ecx;
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
      leaf7_ebx = ebx;
      leaf7_ecx = ecx;
    }
    if (leaf1_ecx & bit_OSXSAVE) {
      unsigned low = 0, high = 0;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      xcr0 = low;
    }
  }
};

void need(std::string* list, bool there, const char* name) {
  if (there) return;
  if (!list->empty()) *list += ", ";
  *list += name;
}

std::string lacking_for_avx2(const X86& cpu) {
  std::string list;
  need(&list, cpu.leaf1_ecx & bit_AVX, "avx");
  need(&list, cpu.leaf7_ebx & bit_AVX2, "avx2");
  need(&list, cpu.leaf1_ecx & bit_FMA, "fma");
  need(&list, cpu.leaf1_ecx & bit_F16C, "f16c");
  // XCR0 bits 1 and 2: the operating system saves the xmm and ymm registers.
  need(&list, (cpu.xcr0 & 0x6u) == 0x6u, "operating system support for ymm registers");
  return list;
}

std::string lacking_for_avx512(const X86& cpu) {
  std::string list = lacking_for_avx2(cpu);
  need(&list, cpu.leaf7_ebx & bit_AVX512F, "avx512f");
  need(&list, cpu.leaf7_ebx & bit_AVX512BW, "avx512bw");
  need(&list, cpu.leaf7_ebx & bit_AVX512DQ, "avx512dq");
  need(&list, cpu.leaf7_ebx & bit_AVX512VL, "avx512vl");
  // XCR0 bits 5 to 7: opmask and zmm registers.
  need(&list, (cpu.xcr0 & 0xe6u) == 0xe6u, "operating system support for zmm registers");
  return list;
}

std::string lacking_for_avx512_vnni(const X86& cpu) {
  std::string list = lacking_for_avx512(cpu);
  need(&list, cpu.leaf7_ecx & bit_AVX512VNNI, "avx512vnni");
  return list;
}
#endif

struct Table {
  Tier list[kMaxTiers];
  int count = 0;

  Table() {
#if defined(ORTLOOM_X86_TIERS)
    const X86 cpu;
    list[count++] = {"avx512-vnni", &kAvx512Kernels, &kAvx512VnniLinear,
                     lacking_for_avx512_vnni(cpu)};
    list[count++] = {"avx512", &kAvx512Kernels, &kAvx512Linear, lacking_for_avx512(cpu)};
    list[count++] = {"avx2", &kAvx2Kernels, &kAvx2Linear, lacking_for_avx2(cpu)};
#endif
    list[count++] = {"portable", &kPortableKernels, &kPortableLinear, ""};
  }
};

}  // namespace

const Tier* tiers(int* count) {
  static const Table table;
  *count = table.count;
  return table.list;
}

const Tier& choose_tier() {
  int count = 0;
  const Tier* list = tiers(&count);
  const char* variable = "ORTLOOM_CPU_ISA";
  const char* wanted = std::getenv(variable);
  if (wanted == nullptr || *wanted == '\0') {
    variable = "VT_CPU_MATMUL_TIER";
    wanted = std::getenv(variable);
  }
  if (wanted == nullptr || *wanted == '\0') {
    int best = 0;
    while (!list[best].lacking.empty()) ++best;
    return list[best];
  }
  std::string choices;
  for (int i = count - 1; i >= 0; --i) {
    if (std::strcmp(list[i].name, wanted) == 0) {
      if (list[i].lacking.empty()) return list[i];
      throw OpError(std::string(variable) + "=" + wanted +
                        ": this machine lacks " + list[i].lacking,
                    abi::kFail);
    }
    if (!choices.empty()) choices += ", ";
    choices += list[i].name;
  }
  throw OpError(std::string(variable) + "=" + wanted + " is unknown; choices: " + choices,
                abi::kFail);
}

}  // namespace ortloom
