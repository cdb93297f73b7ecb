// Memory of things that come and go again and again, and are alike: to take it from the system anew each time costs as
// much as what is then done with it.
#pragma once

#include <deque>
#include <mutex>

#include "tensor/tensor.h"

namespace quire {

// Keeps the last two pieces that were released, for whoever wants as much next. What is in them is what their last user
// left. Thread-safe, where the other is.
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
  // Sees to it that one piece of so many bytes is kept, with pages under it: who wants it next does not wait for the
  // system. Of the host's memory alone. False: there is none, or such pieces are not kept.
  bool prepare(size_t bytes);

 private:
  static constexpr size_t kMostPieces = 2;

  Allocator& from_;
  const size_t most_bytes_;
  std::mutex mutex_;
  struct Piece {
    void* memory;
    size_t bytes;
  };
  std::deque<Piece> kept_;
};

}  // namespace quire
