#define ORTLOOM_VNNI 1
#define ORTLOOM_BF16 1
#include "vec_avx512.h"
// The body needs the Vec of the line above and the dot products of the lines below.
#include "dot_avx512.h"
#include "linear_brain.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kAvx512Bf16Linear;
const LinearKernels kAvx512Bf16Linear = kKernels;

}  // namespace ortloom
