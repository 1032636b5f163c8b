// bf16 dot products a second on a number of threads; 0 where the CPU has no instruction for them.
// Built by roofline.py with -march=native, as machine_peak.cc is; not a part of the package.

#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

volatile float sink;

#if defined(__AVX512BF16__)
constexpr int kChains = 16;
constexpr int64_t kSteps = 4'000'000;

void dot_products() {
  __m512 sum[kChains];
  for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_ps(static_cast<float>(c));
  const __m512i a = _mm512_set1_epi32(0x3f803f80), b = _mm512_set1_epi32(0x3a803a80);
  for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) {
      __asm__ volatile("vdpbf16ps %2, %1, %0" : "+v"(sum[c]) : "v"(a), "v"(b));
    }
  }
  for (int c = 1; c < kChains; ++c) sum[0] = _mm512_add_ps(sum[0], sum[c]);
  sink = _mm512_cvtss_f32(sum[0]);
}
#endif

}  // namespace

// Multiplications and additions a second of all threads together, the best of `repeats`.
extern "C" double bf16_rate(int threads, int repeats) {
#if defined(__AVX512BF16__)
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t) team.emplace_back(dot_products);
    for (std::thread& thread : team) thread.join();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    constexpr double kOperations = 2.0 * kSteps * kChains * 32;  // 32 pairs an instruction
    best = std::max(best, threads * kOperations / time.count());
  }
  return best;
#else
  (void)threads;
  (void)repeats;
  return 0;
#endif
}
