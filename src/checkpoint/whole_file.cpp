#include "checkpoint/whole_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>

namespace quire::checkpoint {
namespace {

constexpr std::align_val_t kFileAlignment{64};

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
  ::operator delete(data_, kFileAlignment);
}

Result<std::shared_ptr<const WholeFile>> WholeFile::read(const std::filesystem::path& path, size_t most_bytes) {
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
  auto* data = static_cast<std::byte*>(::operator new(size, kFileAlignment, std::nothrow));
  if (data == nullptr) return resource_exhausted("{}: no memory for its {} bytes", path.string(), size);
  std::shared_ptr<const WholeFile> whole(new WholeFile(data, size));
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
