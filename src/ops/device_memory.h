// The part of a backend that is memory: what is taken of it, and copies between host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/host_memory.h"
#include "base/status.h"
#include "tensor/tensor.h"

namespace quire::ops {

class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual Allocator& allocator() = 0;
  bool computes_in_host_memory() { return allocator().device().kind == DeviceKind::kCpu; }
  // Bytes of allocator() that may still be taken.
  virtual int64_t free_memory() const { return available_host_memory(); }
  // Memory of the host that the device reaches as well: of swapped blocks, and for downloads at full speed.
  virtual Allocator& host_allocator() { return allocator(); }

  // Copies between host and device in their turn with the ops. `host` may be written again when upload() returns.
  virtual void upload(void* device, const void* host, size_t bytes);
  // The same on a side stream, from any thread: returns when it is there, and no call of an op waits for it. Errors:
  // resource_exhausted. REQUIRES: no op that is under way reads or writes that memory.
  virtual Status upload_on_side_stream(void* device, const void* host, size_t bytes);
  virtual void download(void* host, const void* device, size_t bytes);
  // The same as download(), but that it does not wait: finish_download() does, with what this returned. `host` is
  // memory of host_allocator(). At most kMostDownloads may be under way; they finish in any order.
  virtual int begin_download(void* host, const void* device, size_t bytes) {
    download(host, device, bytes);
    return 0;
  }
  virtual void finish_download(int /*download*/) {}
  static constexpr int kMostDownloads = 4;
  // Rows that lie so far apart on either side; all in bytes.
  struct CopyShape {
    size_t row_bytes = 0;
    size_t num_rows = 1;
    size_t device_stride = 0;
    size_t host_stride = 0;
  };
  // Copies in their turn with the ops that nobody waits for, and that may be recorded: a replay copies what is there
  // then. `host` is memory of host_allocator().
  virtual void copy_to_host(void* host, const void* device, const CopyShape& shape);
  virtual void copy_to_device(void* device, const void* host, const CopyShape& shape);
  // Waits until all that was called is done.
  virtual void synchronise() {}
};

}  // namespace quire::ops
