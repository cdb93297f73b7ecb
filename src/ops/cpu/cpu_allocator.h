// Host memory for tensors: 64-byte aligned; large pieces come straight from the system, in huge pages where it has
// them.
#pragma once

#include "tensor/tensor.h"

namespace quire::ops::cpu {

class CpuAllocator final : public Allocator {
 public:
  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
};

}  // namespace quire::ops::cpu
