#include "weight_map.h"

#if defined(__linux__)

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <mutex>

#include "file_areas.h"

namespace ortloom {
namespace {

constexpr uintptr_t kHugePage = uintptr_t{2} << 20;

}  // namespace

class MappedFile {
 public:
  // Null where it cannot be mapped, or is too small to gain by it.
  static std::shared_ptr<const MappedFile> open(const FileArea& area) {
    static std::mutex mutex;
    static std::map<uint64_t, std::weak_ptr<const MappedFile>> known;
    const int file = ::open(area.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) return nullptr;
    struct stat facts;
    std::shared_ptr<const MappedFile> result;
    // Device numbers are not compared: some file systems show another one in the list of maps.
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_ino == area.inode &&
        static_cast<uintptr_t>(facts.st_size) >= kHugePage) {
      const std::lock_guard<std::mutex> lock(mutex);
      std::weak_ptr<const MappedFile>& entry = known[area.inode];
      result = entry.lock();
      const size_t size = static_cast<size_t>(facts.st_size);
      if (result == nullptr || result->device_ != facts.st_dev || result->size_ != size) {
        result = map(file, size, facts.st_dev);
        entry = result;
      }
    }
    ::close(file);
    return result;
  }

  ~MappedFile() { munmap(data_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  size_t size() const { return size_; }
  void* at(uintptr_t offset) const { return static_cast<char*>(data_) + offset; }

 private:
  MappedFile(void* data, size_t size, dev_t device) : data_(data), size_(size), device_(device) {}

  static std::shared_ptr<const MappedFile> map(int file, size_t size, dev_t device) {
    // Room for the file at a multiple of a huge page, since what lies in one has to begin at one.
    const size_t room = size + kHugePage;
    void* space = mmap(nullptr, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) return nullptr;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(space);
    const uintptr_t aligned = (begin + kHugePage - 1) / kHugePage * kHugePage;
    void* data = mmap(reinterpret_cast<void*>(aligned), size, PROT_READ, MAP_SHARED | MAP_FIXED, file,
                      0);
    if (data == MAP_FAILED) {
      munmap(space, room);
      return nullptr;
    }
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const uintptr_t end = aligned + (size + page - 1) / page * page;
    if (aligned > begin) munmap(space, aligned - begin);
    munmap(reinterpret_cast<void*>(end), begin + room - end);
    madvise(data, size, MADV_HUGEPAGE);  // refused: small pages, as elsewhere
    return std::shared_ptr<const MappedFile>(new MappedFile(data, size, device));
  }

  void* data_;
  size_t size_;
  dev_t device_;
};

std::vector<std::shared_ptr<const MappedFile>> read_through_own_map(TensorView* views,
                                                                    size_t count) {
  std::vector<std::shared_ptr<const MappedFile>> files;
  std::vector<uintptr_t> addresses;
  for (size_t i = 0; i < count; ++i) {
    if (views[i].present()) addresses.push_back(reinterpret_cast<uintptr_t>(views[i].data));
  }
  if (addresses.empty()) return files;
  std::sort(addresses.begin(), addresses.end());
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  for (const FileArea& area : file_areas(addresses)) {
    const std::shared_ptr<const MappedFile> file = MappedFile::open(area);
    // An area ends with a page, so past the file's end by less than one.
    if (file == nullptr || area.offset + (area.end - area.begin) >= file->size() + page) continue;
    for (size_t i = 0; i < count; ++i) {
      const uintptr_t address = reinterpret_cast<uintptr_t>(views[i].data);
      if (!views[i].present() || address < area.begin || address >= area.end) continue;
      views[i].data = file->at(area.offset + (address - area.begin));
    }
    if (std::find(files.begin(), files.end(), file) == files.end()) files.push_back(file);
  }
  return files;
}

}  // namespace ortloom

#else  // no huge pages for files, or none that we know of

namespace ortloom {

class MappedFile {};

std::vector<std::shared_ptr<const MappedFile>> read_through_own_map(TensorView*, size_t) {
  return {};
}

}  // namespace ortloom

#endif
