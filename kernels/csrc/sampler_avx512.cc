// The sampler's loops in 16 lanes: AVX-512 (F, BW, DQ, VL).
#define ORTLOOM_SAMPLER_LANES 16
#include "sampler_body.h"

namespace ortloom {
const SamplerKernels kAvx512Sampler = kKernels;
}
