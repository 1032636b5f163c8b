// The tiers of x86-64 and what CPUID and XGETBV say of them.

#include "isa.h"

#if defined(ORTLOOM_X86_TIERS)

#include <cpuid.h>

namespace ortloom {
namespace {

constexpr unsigned kAvxVnni = 1u << 4;     // leaf 7, subleaf 1, eax
constexpr unsigned kAvx512Bf16 = 1u << 5;  // the same

struct X86 {
  unsigned leaf1_ecx = 0;
  unsigned leaf1_edx = 0;
  unsigned leaf7_ebx = 0;
  unsigned leaf7_ecx = 0;
  unsigned leaf7_1_eax = 0;
  unsigned xcr0 = 0;

  X86() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
      leaf1_ecx = ecx;
      leaf1_edx = edx;
    }
    if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) {
      leaf7_ebx = ebx;
      leaf7_ecx = ecx;
      const unsigned subleaves = eax;
      if (subleaves >= 1 && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx)) leaf7_1_eax = eax;
    }
    if (leaf1_ecx & bit_OSXSAVE) {
      unsigned low = 0, high = 0;
      __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
      xcr0 = low;
    }
  }
};

std::string lacking_for_sse2(const X86& cpu) {
  std::string list;
  need(&list, cpu.leaf1_edx & bit_SSE2, "sse2");
  return list;
}

// F16C has no form without a VEX prefix, so it needs what AVX needs.
std::string lacking_for_f16c(const X86& cpu) {
  std::string list = lacking_for_sse2(cpu);
  need(&list, cpu.leaf1_ecx & bit_AVX, "avx");
  need(&list, cpu.leaf1_ecx & bit_F16C, "f16c");
  // XCR0 bits 1 and 2: the operating system saves the xmm and ymm registers.
  need(&list, (cpu.xcr0 & 0x6u) == 0x6u, "operating system support for ymm registers");
  return list;
}

std::string lacking_for_avx2(const X86& cpu) {
  std::string list = lacking_for_f16c(cpu);
  need(&list, cpu.leaf7_ebx & bit_AVX2, "avx2");
  need(&list, cpu.leaf1_ecx & bit_FMA, "fma");
  return list;
}

std::string lacking_for_avx2_vnni(const X86& cpu) {
  std::string list = lacking_for_avx2(cpu);
  need(&list, cpu.leaf7_1_eax & kAvxVnni, "avx_vnni");
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

std::string lacking_for_avx512_bf16(const X86& cpu) {
  std::string list = lacking_for_avx512_vnni(cpu);
  need(&list, cpu.leaf7_1_eax & kAvx512Bf16, "avx512_bf16");
  return list;
}

}  // namespace

int list_processor_tiers(Tier* list) {
  const X86 cpu;
  int count = 0;
  list[count++] = {"avx512-bf16", &kAvx512Kernels, &kAvx512Bf16Linear,
                   lacking_for_avx512_bf16(cpu)};
  list[count++] = {"avx512-vnni", &kAvx512Kernels, &kAvx512VnniLinear,
                   lacking_for_avx512_vnni(cpu)};
  list[count++] = {"avx512", &kAvx512Kernels, &kAvx512Linear, lacking_for_avx512(cpu)};
  list[count++] = {"avx2-vnni", &kAvx2Kernels, &kAvx2VnniLinear, lacking_for_avx2_vnni(cpu)};
  list[count++] = {"avx2", &kAvx2Kernels, &kAvx2Linear, lacking_for_avx2(cpu)};
  list[count++] = {"sse2+f16c", &kSse2F16cKernels, &kSse2F16cLinear, lacking_for_f16c(cpu)};
  list[count++] = {"sse2", &kSse2Kernels, &kSse2Linear, lacking_for_sse2(cpu)};
  return count;
}

}  // namespace ortloom

#endif
