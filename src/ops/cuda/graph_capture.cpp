#include "ops/cuda/graph_capture.h"

#include <fmt/format.h>

#include "base/check.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {
namespace {

thread_local GraphCapture* open_capture = nullptr;

}  // namespace

void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  QUIRE_CHECK_MSG(open_capture != nullptr, fmt::format("{}: {}", what, cudaGetErrorString(error)));
  cudaGetLastError();  // not the next call's
  if (open_capture->refused_ != cudaSuccess) return;
  open_capture->refused_ = error;
  open_capture->what_ = what;
}

GraphCapture::~GraphCapture() {
  if (is_open_) open_capture = nullptr;
}

void GraphCapture::begin(cudaStream_t stream) {
  QUIRE_CHECK(open_capture == nullptr);
  open_capture = this;
  is_open_ = true;
  refused_ = cudaSuccess;
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

Result<cudaGraphExec_t> GraphCapture::end(cudaStream_t stream) {
  QUIRE_CHECK(is_open_);
  cudaGraph_t calls = nullptr;
  cudaGraphExec_t graph = nullptr;
  check_cuda(cudaStreamEndCapture(stream, &calls), "cudaStreamEndCapture");
  if (refused_ == cudaSuccess) check_cuda(cudaGraphInstantiate(&graph, calls, 0), "cudaGraphInstantiate");
  if (calls != nullptr) check_cuda(cudaGraphDestroy(calls), "cudaGraphDestroy");
  open_capture = nullptr;
  is_open_ = false;
  if (refused_ == cudaSuccess) return graph;
  if (graph != nullptr) cudaGraphExecDestroy(graph);
  if (refused_ == cudaErrorMemoryAllocation) return resource_exhausted("no memory on the card for a graph");
  return unavailable("a graph cannot be captured: {}: {}", what_, cudaGetErrorString(refused_));
}

}  // namespace quire::ops::cuda
