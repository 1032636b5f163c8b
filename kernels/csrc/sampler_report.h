// Log-probability entries of one position.
#ifndef ORTLOOM_SAMPLER_REPORT_H_
#define ORTLOOM_SAMPLER_REPORT_H_

#include <cstdint>

#include "sampler.h"
#include "sampler_draw.h"
#include "sampler_select.h"

namespace ortloom {

// Fills `out`: values minus `offset`, kCut for what is masked or not kept. The rank of a token is
// the number of tokens whose value is at least its own, and at most the number kept; a token that
// was cut ranks V. The arguments have been checked.
void describe(const SamplerKernels& kernels, const RowView& view, int64_t own, double offset,
              const Kept& kept, const OrtloomLogprobs& out, SampleScratch* scratch);

// Writes the tokens that survived masks and cuts to `ids`, in order and `room` of them at most, but
// none where that is the whole row. Gives their number.
int64_t list_kept(const SamplerKernels& kernels, const RowView& view, const Kept& kept,
                  int64_t* ids, int64_t room, SampleScratch* scratch);

}  // namespace ortloom

#endif  // ORTLOOM_SAMPLER_REPORT_H_
