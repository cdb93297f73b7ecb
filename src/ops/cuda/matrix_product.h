// Matrix products of many rows, by a library that is loaded when a card is used.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// out[m][n] = sum_k x[m][k] * weight[n][k], summed in float32.
struct MatrixProduct {
  DType dtype = DType::kBF16;  // of x and weight: F32, F16 or BF16
  bool may_round = false;      // of F32: to 10 bits of fraction first (TF32), several times as fast
  const void* x = nullptr;     // [num_rows, columns], rows x_stride values apart
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [rows, columns], rows weight_stride values apart
  int64_t weight_stride = 0;
  int64_t num_rows = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  float* out = nullptr;  // [num_rows, rows], rows out_stride floats apart
  int64_t out_stride = 0;
};

class MatrixLibrary {
 public:
  virtual ~MatrixLibrary() = default;
  virtual const std::string& description() const = 0;  // "cuBLASLt 13.0.2"
  // In its turn on the stream. `workspace`: kWorkspaceBytes on the device.
  virtual void multiply(const MatrixProduct& product, void* workspace, cudaStream_t stream) = 0;
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;
};

// cuBLASLt. Errors: unavailable where there is none.
Result<std::unique_ptr<MatrixLibrary>> load_matrix_library();

}  // namespace quire::ops::cuda
