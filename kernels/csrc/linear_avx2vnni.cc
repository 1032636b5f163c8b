#define ORTLOOM_VNNI 1
#include "vec_avx2.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_avx2.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kAvx2VnniLinear;
const LinearKernels kAvx2VnniLinear = kKernels;

}  // namespace ortloom
