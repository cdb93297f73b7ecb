// A file read into memory: of files that may be replaced or cut while they are read, which a mapped one must not be.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>

#include "base/status.h"
#include "tensor/tensor.h"

namespace quire::checkpoint {

class WholeFile {
 public:
  // Errors: not_found; invalid_argument for what is no ordinary file or may not be read; data_loss for an empty file
  // and for one that became shorter meanwhile; resource_exhausted for one over `most_bytes`. The messages name the
  // path. `allocator`, of the host: whose memory the file gets; nullptr: memory of its own.
  static Result<std::shared_ptr<const WholeFile>> read(const std::filesystem::path& path, size_t most_bytes,
                                                       std::shared_ptr<Allocator> allocator = nullptr);
  ~WholeFile();
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  // Aligned to 64 bytes.
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  WholeFile(std::byte* data, size_t size, std::shared_ptr<Allocator> allocator)
      : allocator_(std::move(allocator)), data_(data), size_(size) {}
  std::shared_ptr<Allocator> allocator_;
  std::byte* data_;
  size_t size_;
};

}  // namespace quire::checkpoint
