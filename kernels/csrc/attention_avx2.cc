#include "vec_avx2.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kAvx2Kernels;
const AttentionKernels kAvx2Kernels = kKernels;

}  // namespace ortloom
