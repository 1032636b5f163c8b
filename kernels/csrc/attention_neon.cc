#include "vec_neon.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kNeonKernels;
const AttentionKernels kNeonKernels = kKernels;

}  // namespace ortloom
