// A file of which every byte can be read as memory, for as long as the object lives.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace quire::checkpoint {

class MappedFile {
 public:
  // Errors: not_found when it cannot be opened; data_loss for an empty file; invalid_argument for what is no file.
  static Result<std::unique_ptr<MappedFile>> open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  MappedFile(const std::byte* data, size_t size) : data_(data), size_(size) {}
  const std::byte* data_;
  size_t size_;
};

// A whole small file as text. Errors: as above, and invalid_argument when it is larger than `most` bytes.
Result<std::string> read_text_file(const std::string& path, size_t most);

}  // namespace quire::checkpoint
