// Starting kernels. Sources say launch() instead of <<<>>>, so that they are plain C++ for the emulated device
// (tests/cuda_on_host) as well.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace quire::ops::cuda {

// Ends the process with what CUDA says: a launch that fails is a bug.
void check_cuda(cudaError_t error, const char* what);

// Whether this card's kernels wait by themselves for those before them (begin_kernel() of device.cuh; compiled for
// Hopper and later), and so may be launched while those still run.
bool kernels_overlap();

// Whether its kernels are those of Hopper alone (9.0a), which have its products of warpgroups.
bool runs_hopper_code();

// In its turn on the stream. `shared_bytes`: what dynamic_shared() gives. The kernel begins with begin_kernel().
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute overlap = {};
  overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  overlap.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = kernels_overlap() ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), "launch");
}

constexpr unsigned ceil_div(int64_t a, int64_t b) {
  return static_cast<unsigned>((a + b - 1) / b);
}

}  // namespace quire::ops::cuda
