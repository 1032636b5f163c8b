#include "vec_sse2.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_sse2.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kSse2F16cLinear;
const LinearKernels kSse2F16cLinear = kKernels;

}  // namespace ortloom
