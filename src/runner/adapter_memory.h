// The memory of a device that adapters take turns on: taken once, so that none is asked for, or given back to the
// device, which may wait for what it computes, while adapters come and go.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "tensor/tensor.h"

namespace quire::runner {

class AdapterMemory final : public Allocator {
 public:
  // Takes so many bytes. REQUIRES: the allocator outlives this, and this what is taken of it.
  AdapterMemory(Allocator& device, size_t bytes);
  bool has_memory() const { return memory_.data() != nullptr; }

  Device device() const override { return device_; }
  // The first piece that is free and large enough; nullptr: none is, which may be so although their sum is.
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;

  static constexpr size_t kAlign = 256;

 private:
  const Device device_;
  Buffer memory_;
  std::mutex mutex_;
  std::map<size_t, size_t> free_;  // bytes by where they begin; no two touch
};

}  // namespace quire::runner
