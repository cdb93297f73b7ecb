// Memory of things that come and go again and again, and are alike: to take it from the system anew each time costs as
// much as what is then done with it.
#pragma once

#include <mutex>

#include "tensor/tensor.h"

namespace quire {

// Keeps one piece that was released, until one of another size is, for whoever wants as much next. What is in it is
// what its last user left. Thread-safe, where the other is.
class KeepingAllocator final : public Allocator {
 public:
  // Pieces over `most_bytes` are not kept. `from` must outlive this.
  KeepingAllocator(Allocator& from, size_t most_bytes) : from_(from), most_bytes_(most_bytes) {}
  ~KeepingAllocator() override;
  KeepingAllocator(const KeepingAllocator&) = delete;
  KeepingAllocator& operator=(const KeepingAllocator&) = delete;

  Device device() const override { return from_.device(); }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;

 private:
  Allocator& from_;
  const size_t most_bytes_;
  std::mutex mutex_;
  void* kept_ = nullptr;
  size_t kept_bytes_ = 0;
};

}  // namespace quire
