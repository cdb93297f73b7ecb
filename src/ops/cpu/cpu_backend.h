// The CPU: kernels of the chosen instruction set on a thread pool of the backend's own.
#pragma once

#include <memory>
#include <vector>

#include "base/status.h"
#include "base/thread_pool.h"
#include "ops/backend.h"
#include "types/activation_dtype.h"
#include "types/engine_choices.h"

namespace quire::ops {

struct CpuBackendOptions {
  int threads = 0;         // 0: one a core of `cores`
  std::vector<int> cores;  // for the threads, one each; empty: those that this process may use
  Isa isa = Isa::kAuto;
  ActivationDType activation_dtype = ActivationDType::kAuto;
  int spin_microseconds = ThreadPoolOptions().spin_microseconds;  // of threads that wait for the next operation
};

// Errors: invalid_argument for a silly number of threads, unavailable for a set that the machine or the build lacks,
// resource_exhausted.
Result<std::unique_ptr<Backend>> make_cpu_backend(CpuBackendOptions options = {});

}  // namespace quire::ops
