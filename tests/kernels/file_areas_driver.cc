// Both ways of finding the files behind addresses, beside one another:
// `file_areas_driver FILE ...` maps pieces of each file and prints what each way says of them.
#include <sys/mman.h>

#include "file_areas.cc"

namespace {

void print(const char* way, const std::vector<ortloom::FileArea>& areas) {
  for (const ortloom::FileArea& area : areas) {
    std::printf("%s %zu %zu %llu %s\n", way, static_cast<size_t>(area.end - area.begin),
                static_cast<size_t>(area.offset), static_cast<unsigned long long>(area.inode),
                area.path.c_str());
  }
}

}  // namespace

int main(int count, char** arguments) {
  std::vector<uintptr_t> addresses;
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  for (int i = 1; i < count; ++i) {
    const int file = open(arguments[i], O_RDONLY);
    if (file < 0) return 1;
    for (const size_t offset : {size_t{0}, 2 * page}) {
      void* data = mmap(nullptr, 2 * page, PROT_READ, MAP_PRIVATE, file, static_cast<off_t>(offset));
      if (data == MAP_FAILED) return 2;
      addresses.push_back(reinterpret_cast<uintptr_t>(data) + 5);
      addresses.push_back(reinterpret_cast<uintptr_t>(data) + page + 7);
    }
    close(file);
  }
  void* nobody = mmap(nullptr, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  addresses.push_back(reinterpret_cast<uintptr_t>(nobody));
  addresses.push_back(reinterpret_cast<uintptr_t>(&count));
  addresses.push_back(16);
  std::sort(addresses.begin(), addresses.end());

  const int maps = open("/proc/self/maps", O_RDONLY);
  std::vector<ortloom::FileArea> asked;
  const bool answered = ortloom::ask(maps, addresses, &asked);
  std::vector<ortloom::FileArea> kept = asked;
  const bool refused = !ortloom::ask(open("/dev/null", O_RDONLY), addresses, &kept) && kept.empty();
  std::printf("answered %d\nrefused %d\n", answered ? 1 : 0, refused ? 1 : 0);
  print("asked", asked);
  print("read", ortloom::read_list(addresses));
  return 0;
}
