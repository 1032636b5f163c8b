// The sampler's loops in 4 lanes: SSE2 on x86-64, NEON on arm64.
#define ORTLOOM_SAMPLER_LANES 4
#include "sampler_body.h"

namespace ortloom {
const SamplerKernels kPortableSampler = kKernels;
}
