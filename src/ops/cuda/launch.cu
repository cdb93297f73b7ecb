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

bool kernels_overlap() {
  // What this program's kernels are on a card never changes: asked once for each.
  enum Answer : int8_t { kUnknown, kNo, kYes };
  static std::array<std::atomic<Answer>, 64> answers{};
  int device = 0;
  check_cuda(cudaGetDevice(&device), "cudaGetDevice");
  if (device < 0 || device >= static_cast<int>(answers.size())) return false;
  std::atomic<Answer>& answer = answers[static_cast<size_t>(device)];
  if (answer.load(std::memory_order_relaxed) == kUnknown) {
    // A card for which only older code could be translated has kernels that do not wait.
    cudaFuncAttributes attributes = {};
    check_cuda(cudaFuncGetAttributes(&attributes, probe), "cudaFuncGetAttributes");
    answer.store(attributes.ptxVersion >= 90 ? kYes : kNo, std::memory_order_relaxed);
  }
  return answer.load(std::memory_order_relaxed) == kYes;
}

}  // namespace quire::ops::cuda
