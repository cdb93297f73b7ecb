#include "ops/cuda/cuda_memory.h"

#include <algorithm>
#include <cstring>

#include "ops/cuda/launch.h"

namespace quire::ops::cuda {

CudaAllocator::~CudaAllocator() {
  for (void* chunk : chunks_) cudaFree(chunk);
}

void* CudaAllocator::allocate(size_t bytes) {
  const size_t size = (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign;
  if (size < bytes) return nullptr;
  const auto take = [](size_t wanted) -> void* {
    void* memory = nullptr;
    if (cudaMalloc(&memory, wanted) == cudaSuccess) return memory;
    cudaGetLastError();  // not the next call's
    return nullptr;
  };
  if (size > kSmall) return take(size);
  const std::lock_guard lock(mutex_);
  if (chunk_used_ + size > kChunk) {
    void* chunk = take(kChunk);
    if (chunk == nullptr) return nullptr;
    chunks_.push_back(chunk);
    chunk_used_ = 0;
  }
  void* memory = static_cast<uint8_t*>(chunks_.back()) + chunk_used_;
  chunk_used_ += size;
  return memory;
}

void CudaAllocator::release(void* memory, size_t bytes) {
  if (memory == nullptr || (std::max<size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign <= kSmall) return;
  cudaFree(memory);
}

void* PinnedAllocator::allocate(size_t bytes) {
  void* memory = nullptr;
  if (cudaMallocHost(&memory, std::max<size_t>(bytes, 1)) == cudaSuccess) return memory;
  cudaGetLastError();
  return nullptr;
}

void PinnedAllocator::release(void* memory, size_t /*bytes*/) {
  if (memory != nullptr) cudaFreeHost(memory);
}

Uploader::~Uploader() {
  for (Slot& slot : slots_) {
    if (slot.copied != nullptr) cudaEventDestroy(slot.copied);
    if (slot.memory != nullptr) cudaFreeHost(slot.memory);
  }
}

bool Uploader::begin() {
  for (Slot& slot : slots_) {
    void* memory = nullptr;
    if (cudaMallocHost(&memory, kPiece) != cudaSuccess) {
      cudaGetLastError();
      return false;
    }
    slot.memory = static_cast<uint8_t*>(memory);
    check_cuda(cudaEventCreateWithFlags(&slot.copied, cudaEventDisableTiming), "cudaEventCreate");
  }
  return true;
}

void Uploader::upload_made(void* device, size_t bytes, size_t piece,
                           FunctionRef<void(size_t offset, size_t count, uint8_t* out)> fill) {
  for (size_t offset = 0; offset < bytes; offset += piece) {
    const size_t count = std::min(piece, bytes - offset);
    Slot& slot = slots_[next_++ % slots_.size()];
    check_cuda(cudaEventSynchronize(slot.copied), "cudaEventSynchronize");
    fill(offset, count, slot.memory);
    check_cuda(
        cudaMemcpyAsync(static_cast<uint8_t*>(device) + offset, slot.memory, count, cudaMemcpyHostToDevice, stream_),
        "cudaMemcpyAsync");
    check_cuda(cudaEventRecord(slot.copied, stream_), "cudaEventRecord");
  }
}

void Uploader::upload(void* device, const void* host, size_t bytes) {
  upload_made(device, bytes, kPiece, [&](size_t offset, size_t count, uint8_t* out) {
    std::memcpy(out, static_cast<const uint8_t*>(host) + offset, count);
  });
}

Result<std::unique_ptr<SideStreamUploader>> SideStreamUploader::begin() {
  auto uploader = std::unique_ptr<SideStreamUploader>(new SideStreamUploader);
  int least_priority = 0;
  int greatest_priority = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least_priority, &greatest_priority), "cudaDeviceGetStreamPriority");
  check_cuda(cudaStreamCreateWithPriority(&uploader->stream_, cudaStreamNonBlocking, least_priority),
             "cudaStreamCreate");
  uploader->uploader_ = std::make_unique<Uploader>(uploader->stream_);
  if (uploader->uploader_->begin()) return uploader;
  return resource_exhausted("no pinned memory for uploads on a side stream");
}

SideStreamUploader::~SideStreamUploader() {
  if (stream_ == nullptr) return;
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  uploader_.reset();
  cudaStreamDestroy(stream_);
}

void SideStreamUploader::upload(void* device, const void* host, size_t bytes) {
  uploader_->upload(device, host, bytes);
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void Uploader::upload_rows(void* device, size_t device_stride, const void* host, size_t host_stride, size_t row_bytes,
                           int64_t num_rows) {
  if (device_stride == host_stride && row_bytes == device_stride) {
    return upload(device, host, row_bytes * static_cast<size_t>(num_rows));
  }
  QUIRE_CHECK(row_bytes <= device_stride && device_stride <= kPiece);
  const size_t piece = kPiece / device_stride * device_stride;
  upload_made(device, device_stride * static_cast<size_t>(num_rows), piece,
              [&](size_t offset, size_t count, uint8_t* out) {
                const auto* from = static_cast<const uint8_t*>(host) + offset / device_stride * host_stride;
                for (size_t at = 0; at < count; at += device_stride, from += host_stride) {
                  std::memcpy(out + at, from, row_bytes);
                  std::memset(out + at + row_bytes, 0, device_stride - row_bytes);
                }
              });
}

}  // namespace quire::ops::cuda
