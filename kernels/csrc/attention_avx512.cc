#include "vec_avx512.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kAvx512Kernels;
const AttentionKernels kAvx512Kernels = kKernels;

}  // namespace ortloom
