// Copies to shared memory that are under way while the kernel goes on: made when a thread waits for them, and what they
// will overwrite is NaN until then.
#pragma once

#include <cuda_runtime.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace quire::cuda_on_host {

struct Copy {
  void* to;
  const void* from;  // nullptr: zeros
  size_t bytes;
};

// Of a thread: groups that were committed, from the oldest on, and the one that grows.
struct Copies {
  std::vector<std::vector<Copy>> committed;
  std::vector<Copy> open;
};

// Of this thread of the block. A kernel waits for all its copies before it ends.
inline Copies& copies() {
  static thread_local std::vector<Copies> of_threads(1024);
  return of_threads[threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)];
}

}  // namespace quire::cuda_on_host

// zero_bytes: of the last that become zeros, all or none here.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zero_bytes = 0) {
  const auto is_aligned = [bytes](const void* at) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; };
  if ((bytes != 4 && bytes != 8 && bytes != 16) || !is_aligned(to) || !is_aligned(from)) std::abort();
  if (zero_bytes != 0 && zero_bytes != bytes) std::abort();
  std::memset(to, 0xff, bytes);
  quire::cuda_on_host::copies().open.push_back({to, zero_bytes == 0 ? from : nullptr, bytes});
}

inline void __pipeline_commit() {
  quire::cuda_on_host::Copies& copies = quire::cuda_on_host::copies();
  copies.committed.push_back(std::move(copies.open));
  copies.open.clear();
}

// Until at most so many groups are under way.
inline void __pipeline_wait_prior(size_t groups) {
  auto& committed = quire::cuda_on_host::copies().committed;
  while (committed.size() > groups) {
    for (const auto& copy : committed.front()) {
      if (copy.from == nullptr) {
        std::memset(copy.to, 0, copy.bytes);
      } else {
        std::memcpy(copy.to, copy.from, copy.bytes);
      }
    }
    committed.erase(committed.begin());
  }
}
