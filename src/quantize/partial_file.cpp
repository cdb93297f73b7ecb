#include "quantize/partial_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

namespace quire::quantize {
namespace {

Status failed(const std::filesystem::path& path, const char* what) {
  const int reason = errno;
  const std::string text = fmt::format("{}: {}: {}", path.string(), what, std::strerror(reason));
  return {reason == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kInvalidArgument, text};
}

}  // namespace

PartialFile::PartialFile(std::filesystem::path path, uint64_t purpose, int64_t bytes, int file)
    : path_(std::move(path)), purpose_(purpose), bytes_(bytes), file_(file) {
  partial_ = path_.string() + ".partial";
  state_ = path_.string() + ".partial.state";
}

PartialFile::PartialFile(PartialFile&& other) noexcept
    : path_(std::move(other.path_)),
      partial_(std::move(other.partial_)),
      state_(std::move(other.state_)),
      purpose_(other.purpose_),
      bytes_(other.bytes_),
      file_(std::exchange(other.file_, -1)),
      pieces_done_(other.pieces_done_) {}

PartialFile::~PartialFile() {
  if (file_ >= 0) ::close(file_);
}

Result<PartialFile> PartialFile::open(const std::filesystem::path& path, uint64_t purpose, int64_t bytes) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored)) {
    return invalid_argument("{} exists already: remove it, or choose another name", path.string());
  }
  const std::filesystem::path partial = path.string() + ".partial";
  const int file = ::open(partial.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return failed(partial, "cannot be written");
  PartialFile out(path, purpose, bytes, file);
  // One writer, where the file system has locks. Of one that has just finished, the file has its final name by now.
  struct stat held {};
  struct stat named {};
  const bool is_locked = ::flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (is_locked || ::fstat(file, &held) != 0 || ::stat(partial.c_str(), &named) != 0 || held.st_ino != named.st_ino ||
      held.st_dev != named.st_dev) {
    return invalid_argument("{} is being written by another process: wait for it, or choose another name",
                            path.string());
  }
  std::ifstream state(out.state_);
  uint64_t found_purpose = 0;
  int64_t found_bytes = 0;
  int64_t done = 0;
  const off_t size = ::lseek(file, 0, SEEK_END);
  if (state >> found_purpose >> found_bytes >> done && found_purpose == purpose && found_bytes == bytes && done >= 0 &&
      size == bytes) {
    out.pieces_done_ = done;
    return out;
  }
  if (::ftruncate(file, 0) != 0 || ::ftruncate(file, bytes) != 0) return failed(partial, "cannot be made so large");
  QUIRE_RETURN_IF_ERROR(out.save_state());
  return out;
}

Status PartialFile::save_state() const {
  const std::filesystem::path next = state_.string() + ".next";
  {
    std::ofstream out(next, std::ios::trunc);
    out << purpose_ << ' ' << bytes_ << ' ' << pieces_done_ << '\n';
    out.flush();
    if (!out) return failed(next, "cannot be written");
  }
  std::error_code error;
  std::filesystem::rename(next, state_, error);
  if (error) return invalid_argument("{}: {}", state_.string(), error.message());
  return {};
}

Status PartialFile::write(int64_t offset, std::span<const uint8_t> bytes) {
  QUIRE_CHECK(offset >= 0 && offset + std::ssize(bytes) <= bytes_);
  while (!bytes.empty()) {
    const ssize_t written = ::pwrite(file_, bytes.data(), bytes.size(), offset);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return failed(partial_, "cannot be written");
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return {};
}

Status PartialFile::read(int64_t offset, std::span<uint8_t> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_, bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return failed(partial_, "cannot be read");
    bytes = bytes.subspan(static_cast<size_t>(count));
    offset += count;
  }
  return {};
}

Status PartialFile::finish_piece() {
  if (::fdatasync(file_) != 0) return failed(partial_, "cannot be written");
  ++pieces_done_;
  return save_state();
}

Status PartialFile::finish() {
  if (::fsync(file_) != 0) return failed(partial_, "cannot be written");
  std::error_code error;
  std::filesystem::rename(partial_, path_, error);
  if (error) return invalid_argument("{}: {}", path_.string(), error.message());
  std::filesystem::remove(state_, error);
  return {};
}

}  // namespace quire::quantize
