// Host memory that lies in a file: an allocator of mapped pieces of one file, which has no name any more and goes with
// the process.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "base/status.h"
#include "tensor/tensor.h"

namespace quire {

class FileAllocator final : public Allocator {
 public:
  // `folder`: where the file lives. Errors: what the system says, with the path.
  static Result<std::unique_ptr<FileAllocator>> create(const std::string& folder);
  ~FileAllocator() override;
  FileAllocator(const FileAllocator&) = delete;
  FileAllocator& operator=(const FileAllocator&) = delete;

  Device device() const override { return {}; }
  // nullptr when the file system has no room for it: the room is taken now, not when the pages are written.
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;

 private:
  explicit FileAllocator(int descriptor) : descriptor_(descriptor) {}

  int descriptor_;
  std::mutex mutex_;
  size_t size_ = 0;  // guarded by mutex_
};

}  // namespace quire
