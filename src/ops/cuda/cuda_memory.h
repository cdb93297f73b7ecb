// Memory of a card, memory of the host that the card reaches, and the way from one to the other.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/function_ref.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace quire::ops::cuda {

// Small pieces come out of chunks that stay until the allocator goes: a model has hundreds of them, and the driver
// takes a page of 2 MiB and some time for each.
class CudaAllocator final : public Allocator {
 public:
  explicit CudaAllocator(int device) : device_(device) {}
  ~CudaAllocator() override;
  CudaAllocator(const CudaAllocator&) = delete;
  CudaAllocator& operator=(const CudaAllocator&) = delete;

  Device device() const override { return {DeviceKind::kCuda, device_}; }
  void* allocate(size_t bytes) override;  // aligned to 256
  void release(void* memory, size_t bytes) override;

 private:
  static constexpr size_t kAlign = 256;
  static constexpr size_t kSmall = size_t{256} << 10;
  static constexpr size_t kChunk = size_t{16} << 20;

  const int device_;
  std::mutex mutex_;
  std::vector<void*> chunks_;
  size_t chunk_used_ = kChunk;  // of the last chunk
};

// Pinned memory.
class PinnedAllocator final : public Allocator {
 public:
  Device device() const override { return {}; }
  void* allocate(size_t bytes) override;
  void release(void* memory, size_t bytes) override;
};

// Copies from the host's ordinary memory to the card through pinned buffers that take turns, so that the caller may
// write its memory again at once and the copy runs while the next piece is filled.
class Uploader {
 public:
  explicit Uploader(cudaStream_t stream) : stream_(stream) {}
  ~Uploader();
  Uploader(const Uploader&) = delete;
  Uploader& operator=(const Uploader&) = delete;

  // Takes the pinned buffers. False when there is no memory.
  bool begin();
  void upload(void* device, const void* host, size_t bytes);
  // The same of rows that lie host_stride apart and shall lie device_stride apart; what is between them there becomes
  // 0. REQUIRES: row_bytes <= device_stride <= kPiece.
  void upload_rows(void* device, size_t device_stride, const void* host, size_t host_stride, size_t row_bytes,
                   int64_t num_rows);
  // Of bytes that `fill(offset, count, out)` makes, in rising order.
  void upload_made(void* device, size_t bytes, size_t piece,
                   FunctionRef<void(size_t offset, size_t count, uint8_t* out)> fill);
  static constexpr size_t kPiece = size_t{4} << 20;

 private:
  struct Slot {
    uint8_t* memory = nullptr;
    cudaEvent_t copied = nullptr;
  };

  cudaStream_t stream_;
  std::array<Slot, 4> slots_{};
  size_t next_ = 0;
};

// Copies on a side stream, in no order with the ops.
class SideStreamUploader {
 public:
  // Errors: resource_exhausted where there is no pinned memory.
  static Result<std::unique_ptr<SideStreamUploader>> begin();
  ~SideStreamUploader();
  SideStreamUploader(const SideStreamUploader&) = delete;
  SideStreamUploader& operator=(const SideStreamUploader&) = delete;

  // Waits until it is there. One thread at a time.
  void upload(void* device, const void* host, size_t bytes);

 private:
  SideStreamUploader() = default;

  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Uploader> uploader_;
};

}  // namespace quire::ops::cuda
