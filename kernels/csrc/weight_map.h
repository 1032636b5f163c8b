// Weights read through a map of their file that is our own. ONNX Runtime maps each tensor by itself,
// in small pages; one row of activations is bound by the rate at which memory gives the weights, and
// that is higher where they lie in huge pages (docs/operations.md says by how much).
#ifndef ORTLOOM_WEIGHT_MAP_H_
#define ORTLOOM_WEIGHT_MAP_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "ort_api.h"

namespace ortloom {

// A file in memory. Its map begins at an address that suits huge pages and asks for them: file
// systems with large folios (XFS, and ext4 from Linux 6.16 on) then back it by pages of 2 MiB, all
// others as before.
class MappedFile;

// Points those of `count` views that ONNX Runtime has mapped from a file to the same bytes in our
// map of it; the others, absent ones among them, stay as they are, and so do all where a map cannot
// be had. Returns the files: the views are good while they are kept. A file is mapped once for all
// nodes that keep it.
std::vector<std::shared_ptr<const MappedFile>> read_through_own_map(TensorView* views,
                                                                    size_t count);

}  // namespace ortloom

#endif  // ORTLOOM_WEIGHT_MAP_H_
