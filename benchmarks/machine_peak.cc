// What the machine can do, measured by loops that do nothing else: bytes read from memory, fp32
// fused multiply-adds and integer dot products a second, on a number of threads at once. Built by
// linear.py with -march=native; not a part of the package.
//
// Which instructions count as the peak of exact integer dot products (unsigned codes of weights
// times int8 activations, four neighbours to a 32-bit lane):
//   with VNNI     VPDPBUSD, for codes of 4 bits as for those of 8.
//   without       4 bits: VPMADDUBSW and VPADDW. Products of codes below 16 can be added up in 16
//                 bits for a block of 32; what it costs to widen those sums is not counted.
//                 8 bits: the same twice, on the halves of the codes; half the rate, then. Two
//                 products of 255 * 127 would leave 16 bits. (Moving a code's sign to the activation
//                 takes VPSIGNB, VPMADDUBSW, VPMADDWD and VPADDD: as many instructions, with more of
//                 them for the multiplier.)

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

// Sums that grow side by side: more than latency times units, and with their operands in registers.
#if defined(__AVX512F__)
constexpr int kChains = 16;
#else
constexpr int kChains = 12;
#endif

// One step of a chain. In assembly, so that the compiler neither merges steps nor moves chains to
// memory.
#if defined(__AVX512VNNI__)
inline void small_dot(Int* sum, Int codes, Int x) {
  __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(codes), "v"(x));
}
constexpr double kDotsPerByte = 1;
#elif defined(__AVX512F__)
inline void small_dot(Int* sum, Int codes, Int x) {
  Int pairs;
  __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                   : "+v"(*sum), "=&v"(pairs)
                   : "v"(codes), "v"(x));
}
constexpr double kDotsPerByte = 2;
#else
inline void small_dot(Int* sum, Int codes, Int x) {
  Int pairs;
  __asm__ volatile("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0"
                   : "+x"(*sum), "=&x"(pairs)
                   : "x"(codes), "x"(x));
}
constexpr double kDotsPerByte = 2;
#endif

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
      for (int c = 0; c < kChains; ++c) {
#if defined(__AVX512F__)
        __asm__ volatile("vfmadd231ps %2, %1, %0" : "+v"(sum[c]) : "v"(a), "v"(b));
#else
        __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum[c]) : "x"(a), "x"(b));
#endif
      }
    }
    Float total = sum[0];
#pragma GCC unroll 16
    for (int c = 1; c < kChains; ++c) total = fma(total, a, sum[c]);
    sink = low(total);
  });
  return 2.0 * threads * kSteps * kChains * (sizeof(Float) / 4) / best;
}

// The same for dot products of codes below 16.
extern "C" double int4_rate(int threads, int repeats) {
  constexpr int64_t kSteps = 50'000;
  const double best = best_of(threads, repeats, [&](int) {
    Int sum[kChains];
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) sum[c] = Int{c};
    const Int codes = Int{0x0102030401020304}, x = Int{0x0101010101010101};
    for (int64_t i = 0; i < kSteps; ++i) {
#pragma GCC unroll 16
      for (int c = 0; c < kChains; ++c) small_dot(&sum[c], codes, x);
    }
    Int total = sum[0];
#pragma GCC unroll 16
    for (int c = 1; c < kChains; ++c) total = mix(total, sum[c]);
    sink = low(total);
  });
  return 2.0 * threads * kSteps * kChains * sizeof(Int) / best;
}

// The same for codes of 8 bits.
extern "C" double int8_rate(int threads, int repeats) {
  return int4_rate(threads, repeats) / kDotsPerByte;
}
