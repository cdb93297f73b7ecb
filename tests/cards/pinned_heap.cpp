// Tests hand ops the memory of std::vector. In a test program with this file all of it can be read by a card as well:
// operator new gives pinned memory where there is a card. It stays where it is; managed memory would move, page by
// page, whenever the other side touches it, which tests do at every call.
#include <cuda_runtime.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

// Pieces of a power of two, out of chunks that stay until the program ends.
class PinnedHeap {
 public:
  void* allocate(size_t bytes) {
    const size_t whole = std::bit_ceil(bytes + kHeader);
    const auto size_class = static_cast<size_t>(std::countr_zero(whole));
    const std::lock_guard lock(mutex_);
    void* piece = free_[size_class];
    if (piece != nullptr) {
      free_[size_class] = *static_cast<void**>(piece);
    } else {
      piece = cut(whole);
      if (piece == nullptr) return nullptr;
    }
    *static_cast<size_t*>(piece) = size_class;
    return static_cast<uint8_t*>(piece) + kHeader;
  }

  void release(void* memory) {
    void* piece = static_cast<uint8_t*>(memory) - kHeader;
    const size_t size_class = *static_cast<size_t*>(piece);
    const std::lock_guard lock(mutex_);
    *static_cast<void**>(piece) = free_[size_class];
    free_[size_class] = piece;
  }

 private:
  static constexpr size_t kHeader = 64;
  static constexpr size_t kChunk = size_t{64} << 20;

  void* cut(size_t bytes) {
    if (bytes > left_) {
      const size_t chunk = bytes > kChunk ? bytes : kChunk;
      void* memory = nullptr;
      // This thread may be recording a graph, which such a call would end.
      cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
      cudaThreadExchangeStreamCaptureMode(&mode);
      if (cudaHostAlloc(&memory, chunk, cudaHostAllocPortable | cudaHostAllocMapped) != cudaSuccess) {
        cudaGetLastError();
        memory = std::malloc(chunk);
      }
      cudaThreadExchangeStreamCaptureMode(&mode);
      if (memory == nullptr) return nullptr;
      next_ = static_cast<uint8_t*>(memory);
      left_ = chunk;
    }
    void* piece = next_;
    next_ += bytes;
    left_ -= bytes;
    return piece;
  }

  std::mutex mutex_;
  void* free_[64] = {};
  uint8_t* next_ = nullptr;
  size_t left_ = 0;
};

// Never destroyed: static objects of other files release memory when the program ends.
PinnedHeap& heap() {
  alignas(PinnedHeap) static unsigned char memory[sizeof(PinnedHeap)];
  static auto* the_heap = new (memory) PinnedHeap();
  return *the_heap;
}

}  // namespace

void* operator new(size_t bytes) {
  void* memory = heap().allocate(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void* operator new[](size_t bytes) {
  return operator new(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return heap().allocate(bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return heap().allocate(bytes);
}
void operator delete(void* memory) noexcept {
  if (memory != nullptr) heap().release(memory);
}
void operator delete[](void* memory) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, size_t) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  operator delete(memory);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}
void operator delete[](void* memory, const std::nothrow_t&) noexcept {
  operator delete(memory);
}
