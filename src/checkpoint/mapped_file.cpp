#include "checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace quire::checkpoint {
namespace {

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

}  // namespace

Result<std::unique_ptr<MappedFile>> MappedFile::open(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return not_found("cannot open {}: {}", path, std::strerror(errno));
  struct stat status {};
  if (fstat(file.get(), &status) != 0) return not_found("cannot read {}: {}", path, std::strerror(errno));
  if (!S_ISREG(status.st_mode)) return invalid_argument("{} is not a regular file", path);
  if (status.st_size == 0) return data_loss("{} is empty", path);
  const auto size = static_cast<size_t>(status.st_size);
  void* data = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) return not_found("cannot map {}: {}", path, std::strerror(errno));
  return std::unique_ptr<MappedFile>(new MappedFile(static_cast<const std::byte*>(data), size));
}

MappedFile::~MappedFile() {
  munmap(const_cast<std::byte*>(data_), size_);
}

Result<std::string> read_text_file(const std::string& path, size_t most) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::open(path));
  if (file->bytes().size() > most) {
    return invalid_argument("{} has {} bytes, expected at most {}", path, file->bytes().size(), most);
  }
  return std::string(reinterpret_cast<const char*>(file->bytes().data()), file->bytes().size());
}

}  // namespace quire::checkpoint
