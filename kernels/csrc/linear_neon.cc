#include "vec_neon.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_neon.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kNeonLinear;
const LinearKernels kNeonLinear = kKernels;

}  // namespace ortloom
