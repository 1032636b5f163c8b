// The sampler's loops over a row, in the compiler's own vector types. Each tier's .cc defines
// ORTLOOM_SAMPLER_LANES and includes this once; everything has internal linkage, so that no tier's
// code can be linked into another's.
//
// Exponentials are a fixed sequence of single float32 operations (no fused ones), then rounded to a
// multiple of 2^-34, a grain. runtime/token_draw.py does the same operations in NumPy. Sums are of
// whole numbers of grains.
#ifndef ORTLOOM_SAMPLER_BODY_H_
#define ORTLOOM_SAMPLER_BODY_H_

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>

#include "sampler.h"

namespace {

using ortloom::RowView;
using ortloom::kBuckets;
using ortloom::kSampleBlock;

constexpr int kLanes = ORTLOOM_SAMPLER_LANES;
constexpr int kParts = static_cast<int>(kSampleBlock) / kLanes;  // vectors a block

typedef float F __attribute__((vector_size(4 * kLanes)));
typedef int32_t I __attribute__((vector_size(4 * kLanes)));
typedef uint32_t U __attribute__((vector_size(4 * kLanes)));
typedef float Half __attribute__((vector_size(2 * kLanes)));
typedef double D __attribute__((vector_size(4 * kLanes)));
typedef uint64_t L __attribute__((vector_size(4 * kLanes)));

constexpr float kInfinity = __builtin_inff();
constexpr float kLowest = -30.0f;      // smaller arguments have no mass either
constexpr float kMassless = -24.6f;    // exp of anything below rounds to 0 grains
constexpr float kLog2E = 1.44269504f;
constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
constexpr float kGrainExponent = 34.0f;
constexpr double kGrain = 1.0 / 17179869184.0;

inline F splat(float x) { return F{} + x; }

inline F load(const float* p) {
  F v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}

inline F larger(F a, F b) {
#if ORTLOOM_SAMPLER_LANES == 16
  return (F)_mm512_max_ps((__m512)a, (__m512)b);
#elif ORTLOOM_SAMPLER_LANES == 8
  return (F)_mm256_max_ps((__m256)a, (__m256)b);
#else
  const I more = a > b;
  return (F)(((I)a & more) | ((I)b & ~more));
#endif
}

inline float horizontal_max(F v) {
#if ORTLOOM_SAMPLER_LANES == 16
  return _mm512_reduce_max_ps((__m512)v);
#else
  float lanes[kLanes], best = -kInfinity;
  __builtin_memcpy(lanes, &v, sizeof(v));
  for (int i = 0; i < kLanes; ++i) best = lanes[i] > best ? lanes[i] : best;
  return best;
#endif
}

// exp(x) in grains, not yet rounded, for x <= 0: 2^(n + f) with n = round(x / ln 2), and a minimax
// polynomial of 2^f on [-1/2, 1/2] with constant term 1; exactly 2^34 at 0. The relative error, all
// rounding counted, is 2e-7 near 0 and 2e-6 where the result is next to nothing.
inline F exp_in_grains(F x) {
  constexpr float kScaledShift = kShift + kGrainExponent;
  x = larger(x, splat(kLowest)) * kLog2E;
  const F shifted = x + kScaledShift;
  const F f = x - (shifted - kScaledShift);
  F p = f * 1.3264705194e-03f + 9.6715241671e-03f;
  p = p * f + 5.5507339537e-02f;
  p = p * f + 2.4022242427e-01f;
  p = p * f + 6.9314700365e-01f;
  p = p * f + 1.0f;
  return (F)((U)p + ((U)shifted << 23));
}

// The nearest whole numbers, ties to even, each plus kBias: sums take it away once.
#if ORTLOOM_SAMPLER_LANES == 16
constexpr uint64_t kBias = 0;
inline L round_half(Half e) { return (L)_mm512_cvtps_epi64((__m256)e); }
#else
// Doubles of the size of 1.5 * 2^52 are 1 apart, so that the sum's low bits hold the number.
constexpr uint64_t kBias = 0x4338000000000000u;
inline L round_half(Half e) { return (L)(__builtin_convertvector(e, D) + 6755399441055744.0); }
#endif

inline L low_grains(F e) {
  Half h;
  __builtin_memcpy(&h, &e, sizeof(h));
  return round_half(h);
}

inline L high_grains(F e) {
  Half h;
  __builtin_memcpy(&h, reinterpret_cast<const char*>(&e) + sizeof(h), sizeof(h));
  return round_half(h);
}

// Not RowView's own: an inline function with a linkage could come from another tier's file.
inline int64_t blocks_in(int64_t size) { return (size + kSampleBlock - 1) / kSampleBlock; }

// The values of block b; the last, partial one is copied to `spare` and padded with -inf.
inline const float* block_at(const float* row, int64_t size, int64_t b, float* spare) {
  const int64_t start = b * kSampleBlock;
  if (start + kSampleBlock <= size) return row + start;
  for (int64_t i = 0; i < kSampleBlock; ++i) {
    spare[i] = start + i < size ? row[start + i] : -kInfinity;
  }
  return spare;
}

// Bit i is set where scaled value i of the block is at least `lowest` and below `limit`.
inline uint64_t within(const float* p, float inverse, float lowest, float limit) {
  uint64_t bits = 0;
#if ORTLOOM_SAMPLER_LANES == 16
  for (int v = 0; v < kParts; ++v) {
    const __m512 x = (__m512)(load(p + v * kLanes) * inverse);
    const __mmask16 some = _mm512_mask_cmp_ps_mask(
        _mm512_cmp_ps_mask(x, _mm512_set1_ps(lowest), _CMP_GE_OQ), x, _mm512_set1_ps(limit),
        _CMP_LT_OQ);
    bits |= static_cast<uint64_t>(some) << (v * kLanes);
  }
#elif ORTLOOM_SAMPLER_LANES == 8
  for (int v = 0; v < kParts; ++v) {
    const __m256 x = (__m256)(load(p + v * kLanes) * inverse);
    const int some = _mm256_movemask_ps(
        _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(lowest), _CMP_GE_OQ),
                      _mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ)));
    bits |= static_cast<uint64_t>(static_cast<uint32_t>(some)) << (v * kLanes);
  }
#else
  for (int v = 0; v < kParts; ++v) {
    const F x = load(p + v * kLanes) * inverse;
    const I some = (x >= lowest) & (x < limit) & I{1, 2, 4, 8};
    bits |= static_cast<uint64_t>((some[0] | some[1]) | (some[2] | some[3])) << (v * kLanes);
  }
#endif
  return bits;
}

float block_maxima(const float* row, int64_t size, float* maxima) {
  const int64_t blocks = blocks_in(size);
  float spare[kSampleBlock];
  I bad{};
  F best = splat(-kInfinity);
  for (int64_t b = 0; b < blocks; ++b) {
    const float* p = block_at(row, size, b, spare);
    F most = load(p);
    bad |= most != most;
    for (int v = 1; v < kParts; ++v) {
      const F x = load(p + v * kLanes);
      bad |= x != x;
      most = larger(most, x);
    }
    best = larger(best, most);
    maxima[b] = horizontal_max(most);
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= bad[i];
  return any != 0 ? __builtin_nanf("") : horizontal_max(best);
}

// Eight blocks at a time: the block that first reaches the maximum is searched again at the end.
float argmax(const float* row, int64_t size, int64_t* id) {
  constexpr int64_t kSpan = 8 * kSampleBlock;
  float spare[kSampleBlock];
  I bad{};
  float best = -kInfinity;
  int64_t where = 0;
  for (int64_t start = 0; start < size; start += kSpan) {
    F most = splat(-kInfinity), other = most;
    for (int64_t b = start / kSampleBlock; b < (start + kSpan) / kSampleBlock; ++b) {
      if (b * kSampleBlock >= size) break;
      const float* p = block_at(row, size, b, spare);
      for (int v = 0; v < kParts; v += 2) {
        const F x = load(p + v * kLanes), y = load(p + (v + 1) * kLanes);
        bad |= x != x;
        bad |= y != y;
        most = larger(most, x);
        other = larger(other, y);
      }
    }
    const float top = horizontal_max(larger(most, other));
    if (top > best) {
      best = top;
      where = start;
    }
  }
  int32_t any = 0;
  for (int i = 0; i < kLanes; ++i) any |= bad[i];
  if (any != 0) return __builtin_nanf("");
  while (where + 1 < size && row[where] != best) ++where;
  *id = where;
  return best;
}

void apply_mask(float* row, int64_t size, const uint32_t* bits) {
  const int64_t words = size / 32;
  for (int64_t w = 0; w < words; ++w) {
    const uint32_t word = bits[w];
    float* p = row + w * 32;
    if (word == 0xffffffffu) continue;
    if (word == 0) {
      for (int i = 0; i < 32; ++i) p[i] = -kInfinity;
    } else {
      for (int i = 0; i < 32; ++i) p[i] = (word >> i & 1u) != 0 ? p[i] : -kInfinity;
    }
  }
  for (int64_t i = words * 32; i < size; ++i) {
    if ((bits[words] >> (i - words * 32) & 1u) == 0) row[i] = -kInfinity;
  }
}

double mass(const RowView& view) {
  float spare[kSampleBlock];
  L sums[4] = {};
  uint64_t values = 0;
  for (int64_t b = 0; b < blocks_in(view.size); ++b) {
    if (view.maxima[b] * view.inverse - view.top < kMassless) continue;
    const float* p = block_at(view.row, view.size, b, spare);
    values += kSampleBlock;
    for (int v = 0; v < kParts; v += 2) {
      const F e = exp_in_grains(load(p + v * kLanes) * view.inverse - view.top);
      const F f = exp_in_grains(load(p + (v + 1) * kLanes) * view.inverse - view.top);
      sums[0] += low_grains(e);
      sums[1] += high_grains(e);
      sums[2] += low_grains(f);
      sums[3] += high_grains(f);
    }
  }
  const L sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  uint64_t total = 0;
  for (int i = 0; i < kLanes / 2; ++i) total += sum[i];
  return static_cast<double>(total - values * kBias) * kGrain;
}

inline void store_grains(F x, uint64_t* out) {
  const F e = exp_in_grains(x);
  const L low = low_grains(e) - kBias, high = high_grains(e) - kBias;
  __builtin_memcpy(out, &low, sizeof(low));
  __builtin_memcpy(out + kLanes / 2, &high, sizeof(high));
}

void masses(const float* values, int64_t count, float top, double* out) {
  float piece[kLanes];
  uint64_t grains[kLanes];
  for (int64_t i = 0; i < count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) piece[j] = i + j < count ? values[i + j] : top;
    store_grains(load(piece) - top, grains);
    for (int64_t j = 0; j < kLanes && i + j < count; ++j) {
      out[i + j] = static_cast<double>(grains[j]) * kGrain;
    }
  }
}

// Bucket of each lane, rising as the value falls: two roundings and a cut keep the order.
inline I bucket_of(F x) {
  const F scaled = larger(x, splat(ortloom::kBucketFloor)) * ortloom::kBucketsPerUnit;
  const I place = __builtin_convertvector(scaled, I);
  const I last = I{} + static_cast<int32_t>(kBuckets - 1);
  const I over = place > last;
  return (last & over) | (place & ~over);
}

void histogram(const RowView& view, bool counting, int64_t step, float lowest, double* buckets) {
  // Copies take turns, so that a run of values in one bucket does not wait for each addition.
  constexpr int kCopies = 4;
  constexpr int kMany = 24;  // from here on going through all values costs less than through bits
  uint64_t copies[kCopies][kBuckets] = {};
  float spare[kSampleBlock];
  uint64_t sums[kSampleBlock];
  int32_t places[kSampleBlock];
  for (uint64_t& one : sums) one = 1;
  for (int64_t b = 0; b < blocks_in(view.size); b += step) {
    if (!(view.maxima[b] * view.inverse >= lowest)) continue;
    const float* p = block_at(view.row, view.size, b, spare);
    for (int v = 0; v < kParts; ++v) {
      const F x = load(p + v * kLanes) * view.inverse - view.top;
      const I place = bucket_of(x);
      __builtin_memcpy(places + v * kLanes, &place, sizeof(place));
      if (!counting) store_grains(x, sums + v * kLanes);
    }
    uint64_t bits = within(p, view.inverse, lowest, kInfinity);
    if (__builtin_popcountll(bits) < kMany) {
      for (; bits != 0; bits &= bits - 1) {
        const int i = __builtin_ctzll(bits);
        copies[i % kCopies][places[i]] += sums[i];
      }
    } else {
      for (int i = 0; i < kSampleBlock; i += kCopies) {
        for (int c = 0; c < kCopies; ++c) copies[c][places[i + c]] += sums[i + c];
      }
    }
  }
  const double unit = counting ? 1.0 : kGrain;
  for (int64_t i = 0; i < kBuckets; ++i) {
    const uint64_t sum = (copies[0][i] + copies[1][i]) + (copies[2][i] + copies[3][i]);
    buckets[i] = static_cast<double>(sum) * unit;
  }
}

int64_t collect(const RowView& view, float lowest, float limit, uint32_t* ids, float* values) {
  float spare[kSampleBlock];
  int64_t n = 0;
  for (int64_t b = 0; b < blocks_in(view.size); ++b) {
    if (!(view.maxima[b] * view.inverse >= lowest)) continue;
    const float* p = block_at(view.row, view.size, b, spare);
    for (uint64_t bits = within(p, view.inverse, lowest, limit); bits != 0; bits &= bits - 1) {
      const int i = __builtin_ctzll(bits);
      ids[n] = static_cast<uint32_t>(b * kSampleBlock + i);
      values[n++] = p[i] * view.inverse;
    }
  }
  return n;
}

int64_t count(const RowView& view, float lowest) {
  if (lowest == -kInfinity) return view.size;
  float spare[kSampleBlock];
  int64_t n = 0;
  for (int64_t b = 0; b < blocks_in(view.size); ++b) {
    if (!(view.maxima[b] * view.inverse >= lowest)) continue;
    const float* p = block_at(view.row, view.size, b, spare);
    n += __builtin_popcountll(within(p, view.inverse, lowest, kInfinity));
  }
  return n;
}

constexpr ortloom::SamplerKernels kKernels = {block_maxima, argmax,    apply_mask, mass,
                                              masses,       histogram, collect,    count};

}  // namespace

#endif  // ORTLOOM_SAMPLER_BODY_H_
