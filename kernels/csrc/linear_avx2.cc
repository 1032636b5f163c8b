#include "vec_avx2.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_avx2.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kAvx2Linear;
const LinearKernels kAvx2Linear = kKernels;

}  // namespace ortloom
