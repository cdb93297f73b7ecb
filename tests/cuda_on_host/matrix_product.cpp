// Matrix products in the plainest way, in place of cuBLASLt.
#include "ops/cuda/matrix_product.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "base/check.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/kv_values.cuh"
#include "ops/cuda/launch.h"
#include "ops/quantise.h"
#include "refused_products.h"

namespace quire::ops::cuda {
namespace {

constexpr int kThreads = 128;

std::set<DType> refused;
bool has_scales = true;

template <typename T>
float as_float(T value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else if constexpr (sizeof(T) == 1) {
    return KvFormat<DType::kF8E4M3>::number(value);
  } else {
    return static_cast<float>(value);
  }
}

// A thread an output.
template <typename T>
__global__ void multiply_kernel(MatrixProduct product) {
  begin_kernel();
  const int64_t n = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t m = blockIdx.y;
  if (n >= product.rows) return;
  const T* x = static_cast<const T*>(product.x) + m * product.x_stride;
  const T* weight = static_cast<const T*>(product.weight) + n * product.weight_stride;
  const bool blocks = product.dtype == DType::kF8E4M3_128;
  const int64_t together = blocks ? kScaleColumns : product.columns;  // columns whose sum has one scale
  const int64_t square_stride = (ceil_div(product.columns, together) + 3) / 4 * 4;
  float sum = 0;
  for (int64_t first = 0; first < product.columns; first += together) {
    const int64_t end = first + together < product.columns ? first + together : product.columns;
    float part = 0;
    for (int64_t k = first; k < end; ++k) part += as_float(x[k]) * as_float(weight[k]);
    const int64_t block = first / together;
    if (blocks) {
      part *= product.x_scales[block * product.num_rows + m] *
              product.weight_scales[n / kScaleColumns * square_stride + block];
    } else if (product.x_scales != nullptr) {
      part *= product.x_scales[m] * product.weight_scales[n];
    }
    sum += part;
  }
  if (product.bias != nullptr) sum += product.bias[n];
  store_number(product.out, m * product.out_stride + n, sum);
}

class HostLibrary final : public MatrixLibrary {
 public:
  const std::string& description() const override { return description_; }
  Float8Products f8() const override { return has_scales ? Float8Products::kScaled : Float8Products::kPlain; }
  Status multiply(const MatrixProduct& product, void* /*workspace*/, cudaStream_t stream) override {
    if (refused.contains(product.dtype)) return unavailable("plain loops refuse {}", name(product.dtype));
    const auto is_aligned = [](const void* data, int64_t stride) {
      return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 16 == 0;
    };
    if (has_row_scales(product.dtype)) {  // what cuBLASLt asks for
      QUIRE_CHECK(product.rows % 16 == 0 && product.columns % 16 == 0 && product.bias == nullptr);
      QUIRE_CHECK(is_aligned(product.x, product.x_stride) && is_aligned(product.weight, product.weight_stride));
      QUIRE_CHECK(is_aligned(product.x_scales, 0) && is_aligned(product.weight_scales, 0));
      // Scales of rows may be left to be multiplied by afterwards, those of blocks are part of the sums.
      const bool is_scaled = product.x_scales != nullptr;
      QUIRE_CHECK((product.weight_scales != nullptr) == is_scaled);
      QUIRE_CHECK(is_scaled ? has_scales : product.dtype == DType::kF8E4M3);
      QUIRE_CHECK(product.dtype == DType::kF8E4M3 || product.num_rows % 4 == 0);
    }
    const dim3 grid(ceil_div(product.rows, kThreads), static_cast<unsigned>(product.num_rows));
    const auto kernel = product.dtype == DType::kF32    ? multiply_kernel<float>
                        : product.dtype == DType::kF16  ? multiply_kernel<__half>
                        : has_row_scales(product.dtype) ? multiply_kernel<uint8_t>
                                                        : multiply_kernel<__nv_bfloat16>;
    launch(kernel, grid, dim3(kThreads), 0, stream, product);
    return {};
  }

 private:
  std::string description_ = "plain loops";
};

}  // namespace

void refuse_products(std::set<DType> dtypes) {
  refused = std::move(dtypes);
}
void scale_products(bool scales) {
  has_scales = scales;
}

Result<std::unique_ptr<MatrixLibrary>> load_matrix_library(const std::vector<std::string>& /*paths*/,
                                                           int /*compute_capability*/) {
  return std::unique_ptr<MatrixLibrary>(std::make_unique<HostLibrary>());
}

}  // namespace quire::ops::cuda
