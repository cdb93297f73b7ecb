#include "base/host_memory.h"

#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace quire {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// A file that holds one number ("max": no limit).
int64_t read_number(const char* path) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : kUnknown;
}

int64_t available_by_meminfo() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  int64_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnknown;
}

int64_t left_by_cgroup(const char* limit_file, const char* usage_file) {
  const int64_t limit = read_number(limit_file);
  const int64_t usage = read_number(usage_file);
  if (limit == kUnknown || usage == kUnknown) return kUnknown;
  return std::max<int64_t>(limit - usage, 0);
}

}  // namespace

int64_t available_host_memory() {
  const int64_t available = std::min(
      {available_by_meminfo(), left_by_cgroup("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
       left_by_cgroup("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes")});
  return available == kUnknown ? 0 : available;
}

void trim_heap() {
  malloc_trim(0);
}

int64_t resident_memory() {
  std::ifstream file("/proc/self/statm");
  int64_t total = 0;
  int64_t resident = 0;
  return file >> total >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

void* map_memory(size_t bytes) {
  // More than an object may have: the caller's arithmetic asks for what no machine has.
  if (bytes > static_cast<size_t>(std::numeric_limits<ptrdiff_t>::max()) - 2 * kLargePage) return nullptr;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t used = (std::max(bytes, size_t{1}) + page - 1) / page * page;
  const size_t spare = used >= kLargePage ? kLargePage : 0;
  void* memory = mmap(nullptr, used + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  if (spare == 0) return memory;
  auto* begin = static_cast<char*>(memory);
  const size_t before = (kLargePage - reinterpret_cast<uintptr_t>(begin) % kLargePage) % kLargePage;
  if (before > 0) munmap(begin, before);
  if (before < spare) munmap(begin + before + used, spare - before);
  return begin + before;
}

void unmap_memory(void* memory, size_t bytes) {
  if (memory != nullptr) munmap(memory, std::max(bytes, size_t{1}));
}

void prefer_large_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  const auto begin = reinterpret_cast<uintptr_t>(memory);
  const uintptr_t first = begin / kLargePage * kLargePage;
  const uintptr_t end = (begin + bytes) / kLargePage * kLargePage;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

void return_large_blocks() {
#ifdef __GLIBC__
  mallopt(M_MMAP_THRESHOLD, 1 << 20);
#endif
}

}  // namespace quire
