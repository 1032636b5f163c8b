// What the machine can do, measured by loops that do nothing else: bytes read from memory, fp32
// fused multiply-adds and int8 dot products a second, on a number of threads at once. Built by
// linear.py with -march=native; not a part of the package.

#include <immintrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Runs `body(thread)` on all threads at once, several times; the shortest time in seconds.
template <class Body>
double best_of(int threads, int repeats, Body body) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    std::atomic<int> ready{0};
    std::vector<std::thread> team;
    std::vector<double> begin(threads), end(threads);
    const Clock::time_point zero = Clock::now();
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([&, t] {
        ++ready;
        while (ready < threads) {
        }
        begin[t] = seconds_since(zero);
        body(t);
        end[t] = seconds_since(zero);
      });
    }
    for (std::thread& thread : team) thread.join();
    double first = 1e9, last = 0;
    for (int t = 0; t < threads; ++t) {
      first = begin[t] < first ? begin[t] : first;
      last = end[t] > last ? end[t] : last;
    }
    best = last - first < best ? last - first : best;
  }
  return best;
}

volatile int sink;

#if defined(__AVX512F__)
using Int = __m512i;
Int load(const void* p) { return _mm512_load_si512(p); }
Int mix(Int a, Int b) { return _mm512_xor_si512(a, b); }
int low(Int a) { return _mm512_cvtsi512_si32(a); }
using Float = __m512;
Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
Float splat(float x) { return _mm512_set1_ps(x); }
int low(Float a) { return static_cast<int>(_mm512_cvtss_f32(a)); }
#else
using Int = __m256i;
Int load(const void* p) { return _mm256_load_si256(static_cast<const __m256i*>(p)); }
Int mix(Int a, Int b) { return _mm256_xor_si256(a, b); }
int low(Int a) { return _mm256_cvtsi256_si32(a); }
using Float = __m256;
Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
Float splat(float x) { return _mm256_set1_ps(x); }
int low(Float a) { return static_cast<int>(_mm256_cvtss_f32(a)); }
#endif

constexpr int kChains = 16;

}  // namespace

// Bytes a second of all threads together. Each reads its own memory piece by piece, so that a piece
// is short against the time slices of other load, and is out of the caches when its turn is again.
extern "C" double read_rate(int threads, int repeats) {
  constexpr int64_t kPiece = 8 << 20, kPieces = 24;
  std::vector<char*> memory(threads);
  for (char*& m : memory) {
    m = static_cast<char*>(std::aligned_alloc(4096, kPiece * kPieces));
    std::memset(m, 1, kPiece * kPieces);
  }
  int turn = 0;
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    turn = (turn + 1) % kPieces;
    const double time = best_of(threads, 1, [&](int t) {
      Int a = {}, b = {}, c = {}, d = {};
      constexpr int64_t kStep = 4 * sizeof(Int);
      for (int64_t at = 0; at < kPiece; at += kStep) {
        const char* p = memory[t] + turn * kPiece + at;
        a = mix(a, load(p));
        b = mix(b, load(p + sizeof(Int)));
        c = mix(c, load(p + 2 * sizeof(Int)));
        d = mix(d, load(p + 3 * sizeof(Int)));
      }
      sink = low(mix(mix(a, b), mix(c, d)));
    });
    best = time < best ? time : best;
  }
  for (char* m : memory) std::free(m);
  return threads * static_cast<double>(kPiece) / best;
}

// Multiplications and additions a second.
extern "C" double float_rate(int threads, int repeats) {
  constexpr int64_t kSteps = 50'000;
  const double best = best_of(threads, repeats, [&](int) {
    Float sum[kChains];
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = splat(static_cast<float>(c));
    const Float a = splat(0.999f), b = splat(0.001f);
    for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) sum[c] = fma(sum[c], a, b);
    }
    Float total = sum[0];
#pragma GCC unroll 16
    for (int c = 1; c < kChains; ++c) total = fma(total, a, sum[c]);
    sink = low(total);
  });
  return 2.0 * threads * kSteps * kChains * (sizeof(Float) / 4) / best;
}

// The same for int8 dot products; 0 where the CPU has no instruction for them.
extern "C" double int8_rate(int threads, int repeats) {
#if defined(__AVX512VNNI__)
  constexpr int64_t kSteps = 50'000;
  const double best = best_of(threads, repeats, [&](int) {
    Int sum[kChains];
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = _mm512_set1_epi32(c);
    const Int a = _mm512_set1_epi32(0x01020304);
    const Int b = _mm512_set1_epi32(0x01010101);
    for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) {
        __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[c]) : "v"(a), "v"(b));
      }
    }
    Int total = sum[0];
#pragma GCC unroll 16
    for (int c = 1; c < kChains; ++c) total = mix(total, sum[c]);
    sink = low(total);
  });
  return 2.0 * threads * kSteps * kChains * sizeof(Int) / best;
#else
  (void)threads;
  (void)repeats;
  return 0;
#endif
}
