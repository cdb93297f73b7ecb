#include "tensor/file_allocator.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace quire {

Result<std::unique_ptr<FileAllocator>> FileAllocator::create(const std::string& folder) {
  std::string path = folder + "/quire-XXXXXX";
  const int descriptor = mkostemp(path.data(), O_CLOEXEC);
  if (descriptor < 0) {
    return invalid_argument("cannot make a file in \"{}\": {}. Name a folder that can be written to.", folder,
                            std::strerror(errno));
  }
  unlink(path.c_str());
  return std::unique_ptr<FileAllocator>(new FileAllocator(descriptor));
}

FileAllocator::~FileAllocator() {
  close(descriptor_);
}

void* FileAllocator::allocate(size_t bytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  const std::lock_guard lock(mutex_);
  if (whole == 0 || posix_fallocate(descriptor_, static_cast<off_t>(size_), static_cast<off_t>(whole)) != 0) {
    return nullptr;
  }
  void* memory = mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, static_cast<off_t>(size_));
  if (memory == MAP_FAILED) return nullptr;
  size_ += whole;
  return memory;
}

void FileAllocator::release(void* memory, size_t bytes) {
  munmap(memory, bytes);
}

}  // namespace quire
