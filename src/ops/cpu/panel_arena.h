// Memory of a model's weights: many pieces behind each other in few mappings that begin at a huge page's border. Pieces
// of their own would be smaller than huge pages or lie across their borders, and reading weights over small pages takes
// a third longer (docs/performance.md).
#pragma once

#include <vector>

#include "tensor/tensor.h"

namespace quire::ops::cpu {

// Not for several threads at once.
class PanelArena final : public Allocator {
 public:
  PanelArena() = default;
  ~PanelArena() override;
  PanelArena(const PanelArena&) = delete;
  PanelArena& operator=(const PanelArena&) = delete;

  Device device() const override { return {DeviceKind::kCpu, 0}; }
  void* allocate(size_t bytes) override;              // 64-byte aligned; nullptr: no memory
  void release(void* memory, size_t bytes) override;  // a mapping goes back when its last piece does

 private:
  struct Mapping {
    char* begin = nullptr;
    size_t bytes = 0;
    size_t used = 0;
    int64_t pieces = 0;
  };
  std::vector<Mapping> mappings_;  // the last one is being filled
};

}  // namespace quire::ops::cpu
