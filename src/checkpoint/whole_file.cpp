#include "checkpoint/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

#include "base/host_memory.h"

namespace quire::checkpoint {
namespace {

constexpr std::align_val_t kFileAlignment{64};
// From here on in large pages: of small ones to take them alone would be half the time of reading.
constexpr size_t kLargePagesFrom = kLargePage;

std::byte* take_memory(size_t bytes, Allocator* allocator) {
  if (allocator != nullptr) {
    void* memory = allocator->allocate(bytes);
    if (memory != nullptr && bytes >= kLargePagesFrom) prefer_large_pages(memory, bytes);
    return static_cast<std::byte*>(memory);
  }
  if (bytes < kLargePagesFrom) return static_cast<std::byte*>(::operator new(bytes, kFileAlignment, std::nothrow));
  void* memory = map_memory(bytes);
  if (memory != nullptr) prefer_large_pages(memory, bytes);
  return static_cast<std::byte*>(memory);
}

class FileHandle {
 public:
  // Without waiting for who would write to a pipe.
  explicit FileHandle(const std::filesystem::path& path)
      : number_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~FileHandle() {
    if (number_ >= 0) ::close(number_);
  }
  FileHandle(const FileHandle&) = delete;
  FileHandle& operator=(const FileHandle&) = delete;
  int number() const { return number_; }

 private:
  int number_;
};

}  // namespace

WholeFile::~WholeFile() {
  if (allocator_ != nullptr) {
    allocator_->release(data_, size_);
  } else if (size_ < kLargePagesFrom) {
    ::operator delete(data_, kFileAlignment);
  } else {
    unmap_memory(data_, size_);
  }
}

Result<std::shared_ptr<const WholeFile>> WholeFile::read(const std::filesystem::path& path, size_t most_bytes,
                                                         std::shared_ptr<Allocator> allocator) {
  const FileHandle file(path);
  const int reason = errno;
  if (file.number() < 0 && (reason == ENOENT || reason == ENOTDIR))
    return not_found("{}: there is no such file", path.string());
  if (file.number() < 0) return invalid_argument("{}: cannot be read: {}", path.string(), std::strerror(reason));
  struct stat what {};
  if (::fstat(file.number(), &what) != 0 || !S_ISREG(what.st_mode)) {
    return invalid_argument("{}: is not an ordinary file", path.string());
  }
  const auto size = static_cast<size_t>(what.st_size);
  if (size == 0) return data_loss("{}: the file is empty", path.string());
  if (size > most_bytes) {
    return resource_exhausted("{}: has {} bytes, expected at most {}", path.string(), size, most_bytes);
  }
  std::byte* data = take_memory(size, allocator.get());
  if (data == nullptr) return resource_exhausted("{}: no memory for its {} bytes", path.string(), size);
  std::shared_ptr<const WholeFile> whole(new WholeFile(data, size, std::move(allocator)));
  for (size_t done = 0; done < size;) {
    const ssize_t count = ::read(file.number(), data + done, size - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return invalid_argument("{}: cannot be read: {}", path.string(), std::strerror(errno));
    if (count == 0) return data_loss("{}: ends after {} of {} bytes", path.string(), done, size);
    done += static_cast<size_t>(count);
  }
  return whole;
}

}  // namespace quire::checkpoint
