// Host memory for tensors: 64-byte aligned; large pieces come straight from the system, in huge pages where it has
// them.
#pragma once

#include <atomic>

#include "tensor/tensor.h"

namespace quire::ops::cpu {

class CpuAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;

 private:
  std::atomic<size_t> next_piece_{0};
};

}  // namespace quire::ops::cpu
