// Matrix products: by which kernels, by the number of rows and the weight's format.
#pragma once

#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "ops/cuda/kernels.h"
#include "ops/cuda/matrix_product.h"
#include "ops/cuda/product_kernels.h"
#include "ops/cuda/weights.h"
#include "ops/linear.h"
#include "tensor/tensor.h"

namespace quire::ops::cuda {

class Products {
 public:
  // rounds_activations: inputs of many rows may be rounded to the weight's 8 bits, or to 16. All work on the scratch,
  // at least a MiB of memory, is in its turn on the stream.
  Products(std::unique_ptr<MatrixLibrary> library, bool batch_invariant, bool rounds_activations,
           ProductKernels kernels, Buffer& scratch, Buffer& library_workspace, cudaStream_t stream)
      : library_(std::move(library)),
        batch_invariant_(batch_invariant),
        rounds_activations_(rounds_activations),
        kernels_(kernels),
        scratch_(scratch),
        scratch_bytes_(static_cast<int64_t>(scratch.bytes())),
        half_of_scratch_(scratch_bytes_ / 2),
        library_workspace_(library_workspace),
        stream_(stream) {}

  // What the library refuses, quire's own kernels compute, slower: that is said once for a weight's shape.
  void multiply(const LinearArgs& args);
  // Backend::input_dtype().
  DType input_dtype(const CudaMatrix& matrix, int64_t num_rows) const;
  // Whether that many rows have the kernel of few rows, which gates as well.
  bool takes_few_rows(const CudaMatrix& matrix, int64_t num_rows) const;

 private:
  // How a product of so many rows is computed.
  enum class Way {
    kFew,       // by our own kernel, which reads the weight as it is stored and x as floats
    kDecoded,   // by tensor cores, which the weight is decoded for once (DecodedWork)
    kFloats,    // by the library: of floats
    kRounded,   //   x rounded to the weight's 16 bits
    kEightBit,  //   x rounded to F8_E4M3, with a scale a row or for every 128 columns of it
    kExpanded,  //   the weight expanded to F16 or floats
  };
  Way way_of(const CudaMatrix& matrix, int64_t num_rows) const;
  void multiply_plain(const LinearArgs& args, const CudaMatrix& matrix);
  // Errors: unavailable where the library refuses; `out` may be written in part.
  Status multiply_as(Way way, const LinearArgs& args, const CudaMatrix& matrix);
  Status multiply_by_library(const LinearArgs& args, MatrixProduct product, int64_t first, int64_t count);
  Status multiply_rounded(const LinearArgs& args, const StoredMatrix& weight);
  Status multiply_eight_bit(const LinearArgs& args, const CudaMatrix& matrix);
  // Codes of x and their scales, of rows that are summed for `padded` of them.
  struct Coded {
    const uint8_t* codes;
    const float* scales;
    int64_t num_rows;
    int64_t padded;
  };
  Status multiply_codes(const LinearArgs& args, const CudaMatrix& matrix, const Coded& x, int64_t first);
  Status multiply_expanded(const LinearArgs& args, const StoredMatrix& weight);
  void multiply_by_tiles(const LinearArgs& args, const StoredMatrix& weight);
  Status multiply_by_expanded(const LinearArgs& args, const StoredMatrix& weight);
  void multiply_ourselves(const LinearArgs& args, const StoredMatrix& weight);
  void tell_of(const Status& refusal, const StoredMatrix& weight);

  std::unique_ptr<MatrixLibrary> library_;
  const bool batch_invariant_;
  const bool rounds_activations_;
  const ProductKernels kernels_;
  Buffer& scratch_;
  int64_t scratch_bytes_;
  int64_t half_of_scratch_;
  Buffer& library_workspace_;
  cudaStream_t stream_;
  std::set<std::tuple<DType, int64_t, int64_t>> told_;  // of weights: dtype, rows, columns
};

}  // namespace quire::ops::cuda
