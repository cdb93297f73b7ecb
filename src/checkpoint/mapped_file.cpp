#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace quire::checkpoint {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string reason(int error) {
  return std::generic_category().message(error);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::filesystem::path& path) {
  // Not blocking: a named pipe without a writer must not hang the load.
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) {
    const int error = errno;
    if (error == ENOENT || error == ENOTDIR) return not_found("{}: no such file", path.string());
    return invalid_argument("{}: cannot be opened for reading: {}", path.string(), reason(error));
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    return invalid_argument("{}: cannot be examined: {}", path.string(), reason(errno));
  }
  if (S_ISDIR(status.st_mode)) return invalid_argument("{}: is a directory, expected a file", path.string());
  if (!S_ISREG(status.st_mode)) return invalid_argument("{}: is not a regular file", path.string());
  if (status.st_size == 0) return data_loss("{}: the file is empty; was its download cut short?", path.string());
  const auto size = static_cast<size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) {
    return invalid_argument("{}: {} bytes cannot be mapped: {}", path.string(), size, reason(errno));
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  ::munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::filesystem::path& path, size_t most_bytes) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::open(path));
  const std::span<const std::byte> bytes = file->bytes();
  if (bytes.size() > most_bytes) {
    return invalid_argument("{}: {} bytes, expected at most {}", path.string(), bytes.size(), most_bytes);
  }
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace quire::checkpoint
