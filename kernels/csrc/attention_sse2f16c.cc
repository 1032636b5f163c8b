#include "vec_sse2.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kSse2F16cKernels;
const AttentionKernels kSse2F16cKernels = kKernels;

}  // namespace ortloom
