// A file as memory, for reading only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace quire::checkpoint {

class MappedFile {
 public:
  // Errors: not_found; invalid_argument for a directory, a pipe or a device, and for a file that may not be read;
  // data_loss for an empty file. The messages name the path.
  static Result<std::shared_ptr<const MappedFile>> open(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // As large as the file was when it was opened, aligned to a page. Whoever truncates the file while it is mapped ends
  // the process (SIGBUS): checkpoints are replaced by renaming, not rewritten in place.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

// A whole text file. Errors: as MappedFile::open, and invalid_argument when it has more than `most_bytes`.
Result<std::string> read_text_file(const std::filesystem::path& path, size_t most_bytes);

}  // namespace quire::checkpoint
