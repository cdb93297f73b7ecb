#include "ops/cuda/launch.h"

#include <array>
#include <atomic>

#include "ops/cuda/device.cuh"

namespace quire::ops::cuda {
namespace {

__global__ void probe() {
  begin_kernel();
}

}  // namespace

namespace {

// Of this program's kernels on the current card, which never change: asked once for each card.
struct Code {
  int ptx;     // what they were compiled from: 90 for 9.0
  int binary;  // what they are
};
Code code_on_card() {
  constexpr int kFactor = 1000;
  constexpr int kUnknown = 0;
  static std::array<std::atomic<int>, 64> known{};
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (device < 0 || device >= static_cast<int>(known.size())) return {};
  std::atomic<int>& code = known[static_cast<size_t>(device)];
  if (code.load(std::memory_order_relaxed) == kUnknown) {
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, probe), "cudaFuncGetAttributes");
    code.store(attributes.ptxVersion * kFactor + attributes.binaryVersion, std::memory_order_relaxed);
  }
  const int both = code.load(std::memory_order_relaxed);
  return {.ptx = both / kFactor, .binary = both % kFactor};
}

}  // namespace

// A card for which only older code could be translated has kernels that do not wait.
bool kernels_overlap() {
  return code_on_card().ptx >= 90;
}

bool runs_hopper_code() {
#if defined(QUIRE_BUILT_FOR_HOPPER) || !defined(__CUDACC__)
  const Code code = code_on_card();
  return code.ptx == 90 && code.binary == 90;
#else
  return false;
#endif
}

}  // namespace quire::ops::cuda
