// cuBLASLt by its functions, so that tests can stand in for a part of them.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/cuda/matrix_product.h"

namespace quire::ops::cuda {

struct CublasLtFunctions {
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtDestroy) destroy = nullptr;
  decltype(&cublasLtGetVersion) get_version = nullptr;
  decltype(&cublasLtGetStatusString) status_string = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) create_operation = nullptr;
  decltype(&cublasLtMatmulDescDestroy) destroy_operation = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) set_operation = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) create_layout = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) destroy_layout = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) create_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
};

// The library's name, which says CUDA's major version: "libcublasLt.so.13".
std::string cublas_lt_file();
// Loads it, for as long as the process runs: from the first of the paths that is one (a file, or a folder that holds
// it), then where the loader looks, then where NVIDIA's own packages put it. Needs no card. Errors: unavailable.
Result<CublasLtFunctions> load_cublas_lt(const std::vector<std::string>& paths);

// compute_capability: of the card, 90 for 9.0. Errors: unavailable where the library does not start.
Result<std::unique_ptr<MatrixLibrary>> make_cublas_lt(const CublasLtFunctions& functions, int compute_capability);

}  // namespace quire::ops::cuda
