// cuBLASLt, loaded when the first card is used: half a gigabyte of library that a machine without a card need not have.
#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"
#include "ops/cuda/matrix_product.h"
#include "ops/quantise.h"

namespace quire::ops::cuda {
namespace {

struct Functions {
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

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, Functions& f) {
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
  // Takes the library's handle.
  CublasLt(void* library, const Functions& functions) : library_(library), f_(functions) {
    const size_t version = f_.get_version();
    description_ = fmt::format("cuBLASLt {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }
  ~CublasLt() override {
    for (auto& [key, plan] : plans_) destroy(plan);
    if (handle_ != nullptr) f_.destroy(handle_);
    dlclose(library_);
  }

  // Errors: unavailable.
  Status begin() {
    int device = 0;
    int major = 0;
    if (cudaGetDevice(&device) == cudaSuccess)
      cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    constexpr size_t kFirstWithVectors = 120900;
    scales_vectors_ = major == 9 && f_.get_version() >= kFirstWithVectors;
    const cublasStatus_t status = f_.create(&handle_);
    if (status == CUBLAS_STATUS_SUCCESS) return {};
    handle_ = nullptr;
    return unavailable("cuBLASLt does not start: {}", f_.status_string(status));
  }

  const std::string& description() const override { return description_; }
  bool has_f8() const override { return scales_vectors_; }

  void multiply(const MatrixProduct& product, void* workspace, cudaStream_t stream) override {
    const Plan& plan = plan_for(product);
    // Of a plan that many products share; the library reads them during the call.
    if (product.bias != nullptr) set(plan.operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
    if (has_row_scales(product.dtype)) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, product.weight_scales);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, product.x_scales);
    }
    const float one = 1.0f;
    const float zero = 0.0f;
    // Columns come first in cuBLAS: what it is asked for is out^T = weight x^T.
    check(f_.matmul(handle_, plan.operation, &one, product.weight, plan.weight, product.x, plan.x, &zero,
                    product.out.data, plan.out, product.out.data, plan.out, &plan.algorithm, workspace, kWorkspaceBytes,
                    stream),
          product);
  }

 private:
  // Batches have any number of rows: beyond this many shapes all are forgotten.
  static constexpr size_t kMostPlans = 4096;

  void check(cublasStatus_t status, const MatrixProduct& product) const {
    QUIRE_CHECK_MSG(status == CUBLAS_STATUS_SUCCESS,
                    fmt::format("{} of [{}, {}] by [{}, {}] of {}: {}", description_, product.num_rows, product.columns,
                                product.rows, product.columns, name(product.dtype), f_.status_string(status)));
  }

  template <typename T>
  void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, T value) {
    QUIRE_CHECK(f_.set_operation(operation, attribute, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS);
  }
  template <typename T>
  void prefer(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    QUIRE_CHECK(f_.set_preference(preference, attribute, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS);
  }

  void destroy(Plan& plan) {
    f_.destroy_operation(plan.operation);
    for (cublasLtMatrixLayout_t layout : {plan.weight, plan.x, plan.out}) f_.destroy_layout(layout);
  }

  const Plan& plan_for(const MatrixProduct& product) {
    const int64_t size = row_bytes(product.dtype, 1);
    const int64_t out_size = row_bytes(product.out.dtype, 1);
    const PlanKey key{.dtype = product.dtype,
                      .out_dtype = product.out.dtype,
                      .has_bias = product.bias != nullptr,
                      .num_rows = product.num_rows,
                      .rows = product.rows,
                      .columns = product.columns,
                      .x_stride = product.x_stride,
                      .weight_stride = product.weight_stride,
                      .out_stride = product.out_stride,
                      .x_align = alignment(product.x, product.x_stride * size),
                      .weight_align = alignment(product.weight, product.weight_stride * size),
                      .out_align = alignment(product.out.data, product.out_stride * out_size)};
    const auto known = plans_.find(key);
    if (known != plans_.end()) return known->second;
    if (plans_.size() >= kMostPlans) {
      for (auto& [old, plan] : plans_) destroy(plan);
      plans_.clear();
    }
    return plans_.emplace(key, make_plan(product, key)).first->second;
  }

  Plan make_plan(const MatrixProduct& product, const PlanKey& key) {
    const cudaDataType_t type = data_type(product.dtype);
    Plan plan;
    check(f_.create_operation(&plan.operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), product);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(plan.operation, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
    if (key.has_bias) set(plan.operation, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    if (product.dtype == DType::kF8E4M3) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F);
    } else if (product.dtype == DType::kF8E4M3_128) {
      set(plan.operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
      set(plan.operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    }
    const auto columns = static_cast<uint64_t>(product.columns);
    const auto rows = static_cast<uint64_t>(product.rows);
    const auto num_rows = static_cast<uint64_t>(product.num_rows);
    check(f_.create_layout(&plan.weight, type, columns, rows, product.weight_stride), product);
    check(f_.create_layout(&plan.x, type, columns, num_rows, product.x_stride), product);
    check(f_.create_layout(&plan.out, data_type(key.out_dtype), rows, num_rows, product.out_stride), product);

    cublasLtMatmulPreference_t preference = nullptr;
    check(f_.create_preference(&preference), product);
    prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.weight_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.x_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.out_align);
    prefer(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.out_align);
    cublasLtMatmulHeuristicResult_t result = {};
    int found = 0;
    const cublasStatus_t status = f_.get_heuristic(handle_, plan.operation, plan.weight, plan.x, plan.out, plan.out,
                                                   preference, 1, &result, &found);
    f_.destroy_preference(preference);
    check(status, product);
    QUIRE_CHECK_MSG(
        found > 0, fmt::format("{} knows no way to multiply [{}, {}] by [{}, {}] of {}", description_, product.num_rows,
                               product.columns, product.rows, product.columns, name(product.dtype)));
    plan.algorithm = result.algo;
    return plan;
  }

  void* library_;
  Functions f_;
  std::string description_;
  cublasLtHandle_t handle_ = nullptr;
  bool scales_vectors_ = false;  // of F8_E4M3, a scale for each row of both sides, or for blocks of both: Hopper's
  std::map<PlanKey, Plan> plans_;
};

}  // namespace

Result<std::unique_ptr<MatrixLibrary>> load_matrix_library() {
  const std::string soname = fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
  void* library = nullptr;
  // Where the loader looks, then where NVIDIA's own packages put it.
  for (const std::string& path : {soname, "/usr/local/cuda/lib64/" + soname}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return unavailable(
        "{} was not found, which matrix products on a card need: install CUDA {}'s libcublas, or name its "
        "folder in LD_LIBRARY_PATH",
        soname, CUBLAS_VER_MAJOR);
  }
  Functions functions;
  if (!find_all(library, functions)) {
    dlclose(library);
    return unavailable("{} lacks a function that CUDA {} has", soname, CUBLAS_VER_MAJOR);
  }
  auto cublas = std::make_unique<CublasLt>(library, functions);
  QUIRE_RETURN_IF_ERROR(cublas->begin());
  return std::unique_ptr<MatrixLibrary>(std::move(cublas));
}

}  // namespace quire::ops::cuda
