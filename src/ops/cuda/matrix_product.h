// Matrix products of many rows, by a library that is loaded when a card is used.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/rows.h"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// out[m][n] = sum_k x[m][k] * weight[n][k] + bias[n], summed in float32.
struct MatrixProduct {
  DType dtype = DType::kBF16;  // of x and weight: F32, F16, BF16, F8_E4M3 or F8_E4M3_128
  const void* x = nullptr;     // [num_rows, columns], rows x_stride values apart
  int64_t x_stride = 0;
  const void* weight = nullptr;  // [rows, columns], rows weight_stride values apart
  int64_t weight_stride = 0;
  int64_t num_rows = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  // Of F8_E4M3 what sums are multiplied by, [num_rows] and [rows], or nullptr both. Of F8_E4M3_128 what sums over 128
  // columns are: [L, num_rows] and, for every 128 rows and columns, [rows / 128, L4], all of it rounded up; L is
  // columns / 128, L4 that to the next multiple of 4. REQUIRES of both, as tensor cores do: columns, rows and strides
  // are multiples of 16, data and scales lie at addresses of 16; of F8_E4M3_128: num_rows is a multiple of 4.
  const float* x_scales = nullptr;
  const float* weight_scales = nullptr;
  const float* bias = nullptr;  // [rows] or nullptr; where out is F32 and x is not of 8 bits
  OutRows out;                  // F32, or BF16 where x and weight are; [num_rows, rows], rows out_stride values apart
  int64_t out_stride = 0;
};

// Products of 8-bit floats that a library has on a card.
enum class Float8Products {
  kNone,
  kPlain,   // of F8_E4M3, without scales
  kScaled,  // of F8_E4M3 and F8_E4M3_128, with theirs
};

class MatrixLibrary {
 public:
  virtual ~MatrixLibrary() = default;
  virtual const std::string& description() const = 0;  // "cuBLASLt 13.0.2"
  virtual Float8Products f8() const = 0;
  // In its turn on the stream. `workspace`: kWorkspaceBytes on the device. Errors: unavailable where the library
  // refuses such a product; nothing was done.
  virtual Status multiply(const MatrixProduct& product, void* workspace, cudaStream_t stream) = 0;
  static constexpr size_t kWorkspaceBytes = size_t{32} << 20;
};

// cuBLASLt, looked for at these paths too (cublas_lt.h), for a card of this compute capability: 90 is 9.0.
// Errors: unavailable where there is none.
Result<std::unique_ptr<MatrixLibrary>> load_matrix_library(const std::vector<std::string>& paths,
                                                           int compute_capability);

}  // namespace quire::ops::cuda
