// cuBLASLt, loaded when the first card is used: half a gigabyte of library that a machine without a card need not have.
#include "ops/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "base/check.h"
#include "ops/quantise.h"

namespace quire::ops::cuda {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, CublasLtFunctions& f) {
  return find(library, "cublasLtCreate", f.create) && find(library, "cublasLtDestroy", f.destroy) &&
         find(library, "cublasLtGetVersion", f.get_version) &&
         find(library, "cublasLtGetStatusString", f.status_string) && find(library, "cublasLtMatmul", f.matmul) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", f.get_heuristic) &&
         find(library, "cublasLtMatmulDescCreate", f.create_operation) &&
         find(library, "cublasLtMatmulDescDestroy", f.destroy_operation) &&
         find(library, "cublasLtMatmulDescSetAttribute", f.set_operation) &&
         find(library, "cublasLtMatrixLayoutCreate", f.create_layout) &&
         find(library, "cublasLtMatrixLayoutDestroy", f.destroy_layout) &&
         find(library, "cublasLtMatmulPreferenceCreate", f.create_preference) &&
         find(library, "cublasLtMatmulPreferenceDestroy", f.destroy_preference) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", f.set_preference);
}

// What decides how a product is best computed.
struct PlanKey {
  DType dtype;
  DType out_dtype;
  bool has_bias;
  bool has_scales;
  int64_t num_rows;
  int64_t rows;
  int64_t columns;
  int64_t x_stride;
  int64_t weight_stride;
  int64_t out_stride;
  uint32_t x_align;
  uint32_t weight_align;
  uint32_t out_align;
  auto operator<=>(const PlanKey&) const = default;
};

struct Plan {
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t weight = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t out = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  Status refusal;  // why there is none
};

cudaDataType_t data_type(DType dtype) {
  if (dtype == DType::kBF16) return CUDA_R_16BF;
  if (dtype == DType::kF16) return CUDA_R_16F;
  if (has_row_scales(dtype)) return CUDA_R_8F_E4M3;
  QUIRE_CHECK(dtype == DType::kF32);
  return CUDA_R_32F;
}

// The largest power of two, up to 256, that divides the address and the distance of rows.
uint32_t alignment(const void* data, int64_t stride_bytes) {
  const uint64_t bits = reinterpret_cast<uintptr_t>(data) | static_cast<uint64_t>(stride_bytes) | 256;
  return static_cast<uint32_t>(bits & -bits);
}

class CublasLt final : public MatrixLibrary {
 public:
  CublasLt(const CublasLtFunctions& functions, int compute_capability) : f_(functions) {
    const size_t version = f_.get_version();
    description_ = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
    constexpr size_t kFirstWithVectors = 120900;
    constexpr int kFirstWithF8 = 89;
    if (compute_capability == 90 && version >= kFirstWithVectors) {
      f8_ = Float8Products::kScaled;
    } else if (compute_capability >= kFirstWithF8) {
      f8_ = Float8Products::kPlain;
    }
  }
  ~CublasLt() override {
    forget_plans();
    if (handle_ != nullptr) f_.destroy(handle_);
  }

  // Errors: unavailable.
  Status begin() {
    const cublasStatus_t status = f_.create(&handle_);
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    handle_ = nullptr;
    return unavailable("{} does not start: {}", description_, f_.status_string(status));
  }

  const std::string& description() const override { return description_; }
  Float8Products f8() const override { return f8_; }

  Status multiply(const MatrixProduct& product, void* workspace, cudaStream_t stream) override {
    QUIRE_ASSIGN_OR_RETURN(const Plan* const plan, plan_for(product));
    // Of a plan that many products share; the library reads them during the call.
    QUIRE_RETURN_IF_ERROR(set_pointers(*plan, product));
    const float one = 1.0f;
    const float zero = 0.0f;
    // Columns come first in cuBLAS: what it is asked for is out^T = weight x^T.
    return as_status(f_.matmul(handle_, plan->operation, &one, product.weight, plan->weight, product.x, plan->x, &zero,
                               product.out.data, plan->out, product.out.data, plan->out, &plan->algorithm, workspace,
                               kWorkspaceBytes, stream),
                     product);
  }

 private:
  // Batches have any number of rows: beyond this many shapes all are forgotten.
  static constexpr size_t kMostPlans = 4096;

  Status as_status(cublasStatus_t status, const MatrixProduct& product) const {
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    return unavailable("{} of [{}, {}] by [{}, {}] of {}: {}", description_, product.num_rows, product.columns,
                       product.rows, product.columns, name(product.dtype), f_.status_string(status));
  }

  // Attributes, until the first that is refused.
  template <typename T>
  void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value, cublasStatus_t& status) {
    if (status == CUBLAS_STATUS_SUCCESS) status = f_.set_operation(operation, attribute, &value, sizeof(value));
  }
  template <typename T>
  void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value,
              cublasStatus_t& status) {
    if (status == CUBLAS_STATUS_SUCCESS) status = f_.set_preference(preference, attribute, &value, sizeof(value));
  }

  Status set_pointers(const Plan& plan, const MatrixProduct& product) {
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    if (product.bias != nullptr) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias, status);
    if (product.x_scales != nullptr) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weight_scales, status);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.x_scales, status);
    }
    return as_status(status, product);
  }

  void destroy(Plan& plan) {
    if (plan.operation != nullptr) f_.destroy_operation(plan.operation);
    for (cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.out}) {
      if (layout != nullptr) f_.destroy_layout(layout);
    }
  }
  void forget_plans() {
    for (auto& [key, plan] : plans_) destroy(plan);
    plans_.clear();
  }

  // Asked for once: a shape that the library has refused it will refuse again.
  Result<const Plan*> plan_for(const MatrixProduct& product) {
    const int64_t size = row_bytes(product.dtype, 1);
    const int64_t out_size = row_bytes(product.out.dtype, 1);
    const PlanKey key{.dtype = product.dtype,
                      .out_dtype = product.out.dtype,
                      .has_bias = product.bias != nullptr,
                      .has_scales = product.x_scales != nullptr,
                      .num_rows = product.num_rows,
                      .rows = product.rows,
                      .columns = product.columns,
                      .x_stride = product.x_stride,
                      .weight_stride = product.weight_stride,
                      .out_stride = product.out_stride,
                      .x_align = alignment(product.x, product.x_stride * size),
                      .weight_align = alignment(product.weight, product.weight_stride * size),
                      .out_align = alignment(product.out.data, product.out_stride * out_size)};
    auto known = plans_.find(key);
    if (known == plans_.end()) {
      if (plans_.size() >= kMostPlans) forget_plans();
      known = plans_.emplace(key, Plan{}).first;
      known->second.refusal = make_plan(product, key, known->second);
    }
    if (!known->second.refusal.ok()) return known->second.refusal;
    return &known->second;
  }

  Status make_plan(const MatrixProduct& product, const PlanKey& key, Plan& plan) {
    QUIRE_RETURN_IF_ERROR(describe(product, key, plan));
    // The heuristic looks at them: it has no algorithm for scales that are nowhere.
    QUIRE_RETURN_IF_ERROR(set_pointers(plan, product));
    cublasLtMatmulPreference_t preference = nullptr;
    QUIRE_RETURN_IF_ERROR(as_status(f_.create_preference(&preference), product));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes}, status);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_align, status);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_align, status);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_align, status);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align, status);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    if (status == CUBLAS_STATUS_SUCCESS) {
      status = f_.get_heuristic(handle_, plan.operation, plan.weight, plan.x, plan.out, plan.out, preference, 1,
                                &result, &found);
    }
    f_.destroy_preference(preference);
    if (status == CUBLAS_STATUS_SUCCESS && found == 0) status = CUBLAS_STATUS_NOT_SUPPORTED;
    plan.algorithm = result.algo;
    return as_status(status, product);
  }

  Status describe(const MatrixProduct& product, const PlanKey& key, Plan& plan) {
    QUIRE_RETURN_IF_ERROR(as_status(f_.create_operation(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), product));
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, status);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N, status);
    if (key.has_bias) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS, status);
    // Sums within tensor cores, of 13 bits, instead of float32's every 128 columns: a product's error becomes 1.4e-3 of
    // its size at 4,096 columns and 3e-3 at 14,336, where E4M3 itself costs 3.7e-2 (docs/cuda.md); prompts are an
    // eighth faster.
    if (product.dtype == DType::kF8E4M3) set(plan.operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{1}, status);
    if (product.dtype == DType::kF8E4M3 && key.has_scales) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, status);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, status);
    } else if (product.dtype == DType::kF8E4M3_128) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, status);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, status);
    }
    const auto columns = static_cast<uint64_t>(product.columns);
    const auto rows = static_cast<uint64_t>(product.rows);
    const auto num_rows = static_cast<uint64_t>(product.num_rows);
    const auto lay_out = [&](cublasLtMatrixLayout_t& layout, cudaDataType_t type, uint64_t height, uint64_t width,
                             int64_t stride) {
      if (status == CUBLAS_STATUS_SUCCESS) status = f_.create_layout(&layout, type, height, width, stride);
    };
    lay_out(plan.weight, data_type(product.dtype), columns, rows, product.weight_stride);
    lay_out(plan.x, data_type(product.dtype), columns, num_rows, product.x_stride);
    lay_out(plan.out, data_type(key.out_dtype), rows, num_rows, product.out_stride);
    return as_status(status, product);
  }

  const CublasLtFunctions f_;
  std::string description_;
  cublasLtHandle_t handle_ = nullptr;
  Float8Products f8_ = Float8Products::kNone;  // a scale for each row of both sides, or for blocks of both: Hopper's
  std::map<PlanKey, Plan> plans_;
};

}  // namespace

std::string cublas_lt_file() {
  return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
}

Result<CublasLtFunctions> load_cublas_lt(const std::vector<std::string>& paths) {
  const std::string file = cublas_lt_file();
  std::vector<std::string> tried;
  for (const std::string& path : paths) tried.insert(tried.end(), {path + "/" + file, path});
  tried.insert(tried.end(), {file, "/usr/local/cuda/lib64/" + file});
  // Never closed: to load it anew takes a second, and what it has registered with the driver stays there anyway.
  void* library = nullptr;
  for (size_t i = 0; i < tried.size() && library == nullptr; ++i)
    library = dlopen(tried[i].c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return unavailable(
        "{} was not found, which matrix products on a card need: install CUDA {}'s libcublas (pip install "
        "nvidia-cublas has it too), and name the library or its folder in QUIRE_CUBLASLT, or the folder in "
        "LD_LIBRARY_PATH",
        file, CUBLAS_VER_MAJOR);
  }
  CublasLtFunctions functions;
  if (!find_all(library, functions)) return unavailable("{} lacks a function that CUDA {} has", file, CUBLAS_VER_MAJOR);
  return functions;
}

Result<std::unique_ptr<MatrixLibrary>> make_cublas_lt(const CublasLtFunctions& functions, int compute_capability) {
  auto cublas = std::make_unique<CublasLt>(functions, compute_capability);
  QUIRE_RETURN_IF_ERROR(cublas->begin());
  return std::unique_ptr<MatrixLibrary>(std::move(cublas));
}

Result<std::unique_ptr<MatrixLibrary>> load_matrix_library(const std::vector<std::string>& paths,
                                                           int compute_capability) {
  QUIRE_ASSIGN_OR_RETURN(const CublasLtFunctions functions, load_cublas_lt(paths));
  return make_cublas_lt(functions, compute_capability);
}

}  // namespace quire::ops::cuda
