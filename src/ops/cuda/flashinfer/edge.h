// Where FlashInfer's exceptions end.
#pragma once

#include <exception>

#include "base/check.h"
#include "ops/cuda/launch.h"

namespace quire::ops::cuda {

// Calls what returns a cudaError_t. What goes wrong there is a bug: its arguments were checked and its memory counted.
template <typename Function>
void at_edge(const char* what, Function function) {
  try {
    check_cuda(function(), what);
  } catch (const std::exception& error) {
    QUIRE_CHECK_MSG(false, error.what());
  }
}

}  // namespace quire::ops::cuda
