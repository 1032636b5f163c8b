// Cuts and the draw of one row.
#ifndef ORTLOOM_SAMPLER_DRAW_H_
#define ORTLOOM_SAMPLER_DRAW_H_

#include <cstdint>

#include "sampler.h"
#include "sampler_select.h"

namespace ortloom {

// What of a row survived the cuts: all, or the tokens up to `last_key` in the order.
struct Kept {
  bool all = true;
  uint64_t last_key = 0;
};

struct Draw {
  int64_t token;
  Kept kept;
  double log_mass;  // log of the sum of exp(scaled value) over what was kept
};

// A float64 in [0, 1) with 53 random bits, by Philox4x32-10 (J. Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC'11); the mapping is that of runtime/philox.py.
double philox_uniform(uint64_t seed, uint32_t sample_index, uint32_t position);

// min_p, top_k, top_p, then inverse CDF in the order. The row's top is finite.
Draw draw_token(const SamplerKernels& kernels, const RowView& view, const OrtloomSampleRow& row,
                SampleScratch* scratch);

// log(sum of exp(value)) of the whole row.
double log_normaliser(const SamplerKernels& kernels, const RowView& view);

}  // namespace ortloom

#endif  // ORTLOOM_SAMPLER_DRAW_H_
