// Which files are mapped where in this process.
#ifndef ORTLOOM_FILE_AREAS_H_
#define ORTLOOM_FILE_AREAS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace ortloom {

// A part of the address space that maps a file: addresses begin .. end - 1, bytes from `offset` on.
struct FileArea {
  uintptr_t begin, end, offset;
  uint64_t inode;
  std::string path;
};

// The areas that hold one of `addresses` (sorted), in their order; addresses that no file is behind
// are left out, and all of them where the system does not tell.
std::vector<FileArea> file_areas(const std::vector<uintptr_t>& addresses);

}  // namespace ortloom

#endif  // ORTLOOM_FILE_AREAS_H_
