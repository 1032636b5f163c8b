#include "vec_sse2.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kSse2Kernels;
const AttentionKernels kSse2Kernels = kKernels;

}  // namespace ortloom
