// What the machine can do at most, measured on the spot: the yardstick of every kernel.
#pragma once

#include <string>

#include "base/status.h"
#include "base/thread_pool.h"
#include "tensor/tensor.h"

namespace quire::bench {

struct MachineLimits {
  double memory_bytes_per_second = 0;  // read by all threads from far more than the caches hold
  double float_flops = 0;              // float32 multiply-adds out of registers, each two operations
  std::string float_unit;              // "AVX2 FMA"
  double int8_ops = 0;                 // 8-bit multiply-adds into 32-bit sums, each two operations
  std::string int8_unit;               // "AVX-512 VNNI"
  double parallel_region_seconds = 0;  // to start the pool's threads on nothing and to wait for them
};

// Takes about a second. The pool's caller is this thread; memory comes from the kernels' allocator. Errors:
// resource_exhausted.
Result<MachineLimits> measure_machine(ThreadPool& pool, Allocator& allocator);

}  // namespace quire::bench
