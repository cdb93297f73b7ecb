// Starting kernels. Sources say launch() instead of <<<>>>, so that they are plain C++ for a host that plays the card
// (tests/cuda_on_host) as well.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace quire::ops::cuda {

// Ends the process with what CUDA says: a launch that fails is a bug.
void check_cuda(cudaError_t error, const char* what);

// In its turn on the stream. `shared_bytes`: what dynamic_shared() gives.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), "launch");
}

constexpr unsigned ceil_div(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace quire::ops::cuda
