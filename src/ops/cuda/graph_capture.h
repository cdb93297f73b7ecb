// Calls on a stream, taken down as a graph instead of done.
#pragma once

#include <cuda_runtime.h>

#include "base/status.h"

namespace quire::ops::cuda {

// One at a time on a thread: begin(), calls, end(), and again.
class GraphCapture {
 public:
  GraphCapture() = default;
  ~GraphCapture();
  GraphCapture(const GraphCapture&) = delete;
  GraphCapture& operator=(const GraphCapture&) = delete;

  // From here to end() what CUDA refuses on this thread (check_cuda()) does not end the process: end() tells of it.
  void begin(cudaStream_t stream);
  // Errors: resource_exhausted where the card has no memory for the graph; unavailable where a call could not be
  // captured, with the first refusal. The stream works on as before either way.
  Result<cudaGraphExec_t> end(cudaStream_t stream);

 private:
  cudaError_t refused_ = cudaSuccess;
  const char* what_ = nullptr;  // was refused
  bool is_open_ = false;

  friend void check_cuda(cudaError_t error, const char* what);
};

}  // namespace quire::ops::cuda
