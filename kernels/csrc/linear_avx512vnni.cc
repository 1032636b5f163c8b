#define ORTLOOM_VNNI 1
#include "vec_avx512.h"
// The body needs the Vec of the line above and the dot products of the line below.
#include "dot_avx512.h"
#include "linear_body.h"

namespace ortloom {

extern const LinearKernels kAvx512VnniLinear;
const LinearKernels kAvx512VnniLinear = kKernels;

}  // namespace ortloom
