// The sampler's loops in 8 lanes: AVX2.
#define ORTLOOM_SAMPLER_LANES 8
#include "sampler_body.h"

namespace ortloom {
const SamplerKernels kAvx2Sampler = kKernels;
}
