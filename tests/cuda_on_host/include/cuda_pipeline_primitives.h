// Copies to shared memory that are under way while the kernel goes on: made when a thread waits for them, and what they
// will overwrite is NaN until then.
#pragma once

#include <under_way_on_host.h>

#include <cstdlib>
#include <cstring>

namespace quire::cuda_on_host {

struct Copy {
  void* to;
  const void* from;  // nullptr: zeros
  size_t bytes;
};

}  // namespace quire::cuda_on_host

// zero_bytes: of the last that become zeros, all or none here.
inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zero_bytes = 0) {
  const auto is_aligned = [bytes](const void* at) { return reinterpret_cast<uintptr_t>(at) % bytes == 0; };
  if ((bytes != 4 && bytes != 8 && bytes != 16) || !is_aligned(to) || !is_aligned(from)) std::abort();
  if (zero_bytes != 0 && zero_bytes != bytes) std::abort();
  std::memset(to, 0xff, bytes);
  quire::cuda_on_host::under_way<quire::cuda_on_host::Copy>().add({to, zero_bytes == 0 ? from : nullptr, bytes});
}

inline void __pipeline_commit() {
  quire::cuda_on_host::under_way<quire::cuda_on_host::Copy>().commit();
}

// Until at most so many groups are under way.
inline void __pipeline_wait_prior(size_t groups) {
  quire::cuda_on_host::under_way<quire::cuda_on_host::Copy>().wait(groups, [](const quire::cuda_on_host::Copy& copy) {
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, copy.bytes);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  });
}
