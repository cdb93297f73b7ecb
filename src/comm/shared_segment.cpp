#include "comm/shared_segment.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace quire::comm {

Result<SharedSegment> SharedSegment::create(int64_t bytes) {
  const int descriptor = memfd_create("quire", MFD_CLOEXEC);
  if (descriptor < 0) return resource_exhausted("no memory to share between processes: {}", std::strerror(errno));
  if (ftruncate(descriptor, bytes) != 0) {
    const int error = errno;
    ::close(descriptor);
    return resource_exhausted("no memory of {} bytes to share between processes: {}", bytes, std::strerror(error));
  }
  return map(descriptor, bytes);
}

Result<SharedSegment> SharedSegment::open(int descriptor, int64_t bytes) {
  struct stat file {};
  if (fstat(descriptor, &file) != 0 || !S_ISREG(file.st_mode) || file.st_size != bytes) {
    return invalid_argument(
        "the descriptor {} is no memory of {} bytes: processes of a group are started by quire itself", descriptor,
        bytes);
  }
  return map(descriptor, bytes);
}

Result<SharedSegment> SharedSegment::map(int descriptor, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    ::close(descriptor);
    return resource_exhausted("no addresses for {} bytes of shared memory: {}", bytes, std::strerror(error));
  }
  SharedSegment segment;
  segment.descriptor_ = descriptor;
  segment.data_ = static_cast<uint8_t*>(data);
  segment.bytes_ = bytes;
  return segment;
}

SharedSegment::~SharedSegment() {
  close();
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this == &other) return *this;
  close();
  descriptor_ = std::exchange(other.descriptor_, -1);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  return *this;
}

void SharedSegment::close() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(bytes_));
  if (descriptor_ >= 0) ::close(descriptor_);
  data_ = nullptr;
  descriptor_ = -1;
}

}  // namespace quire::comm
