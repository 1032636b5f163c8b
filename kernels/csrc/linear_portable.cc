#include "vec_portable.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_portable.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kPortableLinear;
const LinearKernels kPortableLinear = kKernels;

}  // namespace ortloom
