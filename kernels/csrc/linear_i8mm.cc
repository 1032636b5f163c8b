#include "vec_neon.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_i8mm.h"
#include "linear_pairs.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kI8mmLinear;
const LinearKernels kI8mmLinear = kKernels;

}  // namespace ortloom
