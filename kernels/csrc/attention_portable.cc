#include "vec_portable.h"
// The body needs the Vec of the line above.
#include "attention_body.h"

namespace ortloom {

extern const AttentionKernels kPortableKernels;
const AttentionKernels kPortableKernels = kKernels;

}  // namespace ortloom
