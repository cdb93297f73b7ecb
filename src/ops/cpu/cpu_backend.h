// The CPU: kernels of the chosen instruction set on a thread pool of the backend's own.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/backend.h"
#include "types/activation_dtype.h"

namespace quire::ops {

struct CpuBackendOptions {
  int threads = 0;           // 0: one a core of `cores`
  std::vector<int> cores;    // for the threads, one each; empty: those that this process may use
  std::string isa = "auto";  // "auto", "portable", "avx2", "avx512" or "avx512_bf16"
  ActivationDType activation_dtype = ActivationDType::kAuto;
};

// Errors: invalid_argument for an unknown instruction set or a silly number of threads, unavailable for a set that the
// machine lacks, resource_exhausted.
Result<std::unique_ptr<Backend>> make_cpu_backend(CpuBackendOptions options = {});

}  // namespace quire::ops
