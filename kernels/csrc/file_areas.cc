#include "file_areas.h"

#if defined(__linux__)

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>

namespace ortloom {
namespace {

// PROCMAP_QUERY of Linux 6.11 and later (include/uapi/linux/fs.h); older headers lack it.
struct MapQuery {
  uint64_t size, flags, address;
  uint64_t begin, end, area_flags, page_size, offset, inode;
  uint32_t device_major, device_minor, name_size, build_id_size;
  uint64_t name, build_id;
};
static_assert(sizeof(MapQuery) == 104, "the kernel's structure");
constexpr unsigned long kMapQuery = _IOWR('f', 17, MapQuery);

// Asks for one address after the other. False where the system does not answer such questions.
bool ask(int maps, const std::vector<uintptr_t>& addresses, std::vector<FileArea>* found) {
  char path[PATH_MAX];
  for (const uintptr_t address : addresses) {
    if (!found->empty() && address < found->back().end) continue;
    MapQuery query = {};
    query.size = sizeof(query);
    query.address = address;
    query.name = reinterpret_cast<uintptr_t>(path);
    query.name_size = sizeof(path);
    if (ioctl(maps, kMapQuery, &query) != 0) {
      if (errno == ENOENT) continue;  // nothing is mapped there
      found->clear();
      return false;
    }
    if (query.inode == 0 || query.name_size == 0) continue;
    found->push_back({static_cast<uintptr_t>(query.begin), static_cast<uintptr_t>(query.end),
                      static_cast<uintptr_t>(query.offset), query.inode, path});
  }
  return true;
}

// Reads the whole list, a line for each of a process's hundreds of areas.
std::vector<FileArea> read_list(const std::vector<uintptr_t>& addresses) {
  std::vector<FileArea> found;
  std::FILE* maps = std::fopen("/proc/self/maps", "re");
  if (maps == nullptr) return found;
  char* line = nullptr;
  size_t capacity = 0;
  while (getline(&line, &capacity, maps) > 0) {
    unsigned long begin = 0, end = 0, offset = 0, inode = 0;
    int path_at = 0;
    if (std::sscanf(line, "%lx-%lx %*s %lx %*s %lu %n", &begin, &end, &offset, &inode, &path_at) <
        4) {
      continue;
    }
    const auto first = std::lower_bound(addresses.begin(), addresses.end(), begin);
    if (inode == 0 || first == addresses.end() || *first >= end) continue;
    std::string path = line + path_at;
    while (!path.empty() && path.back() == '\n') path.pop_back();
    found.push_back({begin, end, offset, inode, path});
  }
  std::free(line);
  std::fclose(maps);
  return found;
}

}  // namespace

std::vector<FileArea> file_areas(const std::vector<uintptr_t>& addresses) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return {};
  std::vector<FileArea> found;
  const bool answered = ask(maps, addresses, &found);
  close(maps);
  return answered ? found : read_list(addresses);
}

}  // namespace ortloom

#else

namespace ortloom {

std::vector<FileArea> file_areas(const std::vector<uintptr_t>&) { return {}; }

}  // namespace ortloom

#endif
