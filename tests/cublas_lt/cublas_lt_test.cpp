// What cuBLASLt is asked for. Its host's side, descriptors and layouts, is the library's own where there is one; what
// needs a card, the handle, the heuristic and the product, is stood in for by functions that look at what the real ones
// would: the heuristic of CUDA 13 refuses scales whose pointer is not there yet.
#include "ops/cuda/cublas_lt.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>

#include "ops/quantise.h"

namespace quire::ops::cuda {
namespace {

decltype(&cublasLtMatmulDescGetAttribute) get_attribute = nullptr;

template <typename T>
T attribute_of(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute) {
  T value{};
  EXPECT_EQ(get_attribute(operation, attribute, &value, sizeof(value), nullptr), CUBLAS_STATUS_SUCCESS) << attribute;
  return value;
}

struct Asked {
  int heuristics = 0;
  int products = 0;
  // Of the last product.
  const void* weight_scales = nullptr;
  const void* x_scales = nullptr;
  const void* bias = nullptr;
  cublasStatus_t heuristic_says = CUBLAS_STATUS_SUCCESS;
  cublasStatus_t product_says = CUBLAS_STATUS_SUCCESS;
  int algorithms = 1;
};
Asked asked;

cublasStatus_t create(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&asked);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t destroy(cublasLtHandle_t /*handle*/) {
  return CUBLAS_STATUS_SUCCESS;
}

bool has_mode(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute) {
  return attribute_of<int32_t>(operation, attribute) != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
}

// "The scaling mode for A scale (OUTER_VEC_32F) requires a custom pointer for A scale", and the same of a bias.
cublasStatus_t get_heuristic(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t,
                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                             cublasLtMatmulPreference_t, int /*most*/, cublasLtMatmulHeuristicResult_t* results,
                             int* found) {
  ++asked.heuristics;
  *found = 0;
  for (const auto& [mode, pointer] :
       {std::pair{CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER},
        std::pair{CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER}}) {
    if (has_mode(operation, mode) && attribute_of<const void*>(operation, pointer) == nullptr)
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (attribute_of<uint32_t>(operation, CUBLASLT_MATMUL_DESC_EPILOGUE) == CUBLASLT_EPILOGUE_BIAS &&
      attribute_of<const void*>(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER) == nullptr)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (asked.heuristic_says != CUBLAS_STATUS_SUCCESS) return asked.heuristic_says;
  *found = asked.algorithms;
  results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t multiply(cublasLtHandle_t /*handle*/, cublasLtMatmulDesc_t operation, const void*, const void*,
                        cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void*, const void*,
                        cublasLtMatrixLayout_t, void*, cublasLtMatrixLayout_t, const cublasLtMatmulAlgo_t*, void*,
                        size_t, cudaStream_t) {
  ++asked.products;
  asked.weight_scales = attribute_of<const void*>(operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
  asked.x_scales = attribute_of<const void*>(operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
  asked.bias = attribute_of<const void*>(operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
  return asked.product_says;
}

// What a product reads is nowhere: nothing here reads it.
template <typename T>
T* at(uintptr_t address) {
  return reinterpret_cast<T*>(address);
}

MatrixProduct product_of(DType dtype, int64_t num_rows = 64) {
  MatrixProduct product{.dtype = dtype,
                        .x = at<void>(0x1000),
                        .x_stride = 256,
                        .weight = at<void>(0x2000),
                        .weight_stride = 256,
                        .num_rows = num_rows,
                        .rows = 512,
                        .columns = 256,
                        .out = at<float>(0x3000),
                        .out_stride = 512};
  if (has_row_scales(dtype)) {
    product.x_scales = at<float>(0x4000);
    product.weight_scales = at<float>(0x5000);
  }
  return product;
}

class CublasLtCalls : public testing::Test {
 protected:
  void SetUp() override {
    auto real = load_cublas_lt({});
    if (!real.ok()) GTEST_SKIP() << real.status().message();
    functions_ = *real;
    void* library = dlopen(cublas_lt_file().c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) library = dlopen(("/usr/local/cuda/lib64/" + cublas_lt_file()).c_str(), RTLD_NOW);
    ASSERT_NE(library, nullptr);
    get_attribute = reinterpret_cast<decltype(get_attribute)>(dlsym(library, "cublasLtMatmulDescGetAttribute"));
    ASSERT_NE(get_attribute, nullptr);
    asked = {};
    functions_.create = create;
    functions_.destroy = destroy;
    functions_.get_heuristic = get_heuristic;
    functions_.matmul = cuda::multiply;
    library_ = make_cublas_lt(functions_, 90).value();
  }
  Status multiply(const MatrixProduct& product) { return library_->multiply(product, nullptr, nullptr); }

  CublasLtFunctions functions_;
  std::unique_ptr<MatrixLibrary> library_;
};

TEST_F(CublasLtCalls, ScalesAndBiasAreThereWhenTheHeuristicIsAsked) {
  for (const DType dtype : {DType::kF8E4M3, DType::kF8E4M3_128}) {
    const Status done = multiply(product_of(dtype));
    EXPECT_TRUE(done.ok()) << done.message();
  }
  MatrixProduct with_bias = product_of(DType::kBF16);
  with_bias.bias = at<float>(0x6000);
  const Status done = multiply(with_bias);
  EXPECT_TRUE(done.ok()) << done.message();
  EXPECT_EQ(asked.heuristics, 3);
  EXPECT_EQ(asked.products, 3);
}

TEST_F(CublasLtCalls, APlanServesProductsWithScalesAndBiasOfTheirOwn) {
  MatrixProduct product = product_of(DType::kF8E4M3);
  ASSERT_TRUE(multiply(product).ok());
  EXPECT_EQ(asked.weight_scales, at<void>(0x5000));
  EXPECT_EQ(asked.x_scales, at<void>(0x4000));
  product.weight_scales = at<float>(0x7000);
  product.x_scales = at<float>(0x8000);
  ASSERT_TRUE(multiply(product).ok());
  EXPECT_EQ(asked.weight_scales, at<void>(0x7000));
  EXPECT_EQ(asked.x_scales, at<void>(0x8000));
  EXPECT_EQ(asked.heuristics, 1);
  MatrixProduct with_bias = product_of(DType::kF16);
  for (const uintptr_t bias : {0x6000, 0x9000}) {
    with_bias.bias = at<float>(bias);
    ASSERT_TRUE(multiply(with_bias).ok());
    EXPECT_EQ(asked.bias, at<void>(bias));
  }
  EXPECT_EQ(asked.heuristics, 2);
}

TEST_F(CublasLtCalls, WhatIsRefusedIsAnErrorAndNotAskedForAgain) {
  asked.heuristic_says = CUBLAS_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < 2; ++i) {
    const Status done = multiply(product_of(DType::kBF16));
    EXPECT_EQ(done.code(), StatusCode::kUnavailable);
    EXPECT_NE(done.message().find("[64, 256] by [512, 256] of BF16"), std::string::npos) << done.message();
  }
  EXPECT_EQ(asked.heuristics, 1);
  EXPECT_EQ(asked.products, 0);
  asked.heuristic_says = CUBLAS_STATUS_SUCCESS;
  asked.algorithms = 0;
  EXPECT_EQ(multiply(product_of(DType::kBF16, 65)).code(), StatusCode::kUnavailable);
  asked.algorithms = 1;
  asked.product_says = CUBLAS_STATUS_EXECUTION_FAILED;
  EXPECT_EQ(multiply(product_of(DType::kBF16, 66)).code(), StatusCode::kUnavailable);
}

TEST_F(CublasLtCalls, ScalesOfEightBitsAreOnlyHoppers) {
  EXPECT_EQ(library_->f8(), Float8Products::kScaled);
  EXPECT_EQ(make_cublas_lt(functions_, 86).value()->f8(), Float8Products::kNone);
  for (const int capability : {89, 100, 120})
    EXPECT_EQ(make_cublas_lt(functions_, capability).value()->f8(), Float8Products::kPlain) << capability;
}

TEST_F(CublasLtCalls, EightBitsWithoutScalesHaveNone) {
  MatrixProduct product = product_of(DType::kF8E4M3);
  ASSERT_TRUE(multiply(product).ok());
  product.weight_scales = product.x_scales = nullptr;
  ASSERT_TRUE(multiply(product).ok()) << "a plan of its own";
  EXPECT_EQ(asked.weight_scales, nullptr);
  EXPECT_EQ(asked.x_scales, nullptr);
  EXPECT_EQ(asked.heuristics, 2);
}

bool is_loaded(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  if (library != nullptr) dlclose(library);
  return library != nullptr;
}

TEST(CublasLtFile, IsFoundInAFolderThatIsNamedAndStaysLoaded) {
  const std::string real = "/usr/local/cuda/lib64/" + cublas_lt_file();
  if (!std::filesystem::exists(real)) GTEST_SKIP() << real << " is not there";
  // A folder as pip makes it.
  const std::string folder = testing::TempDir() + "python/nvidia/cu13/lib";
  std::filesystem::create_directories(folder);
  const std::string named = folder + "/" + cublas_lt_file();
  std::filesystem::remove(named);
  std::filesystem::create_symlink(real, named);
  ASSERT_TRUE(load_cublas_lt({testing::TempDir() + "nowhere", folder}).ok());
  ASSERT_TRUE(load_cublas_lt({named}).ok());
  if (const auto library = load_matrix_library({folder}, 90); !library.ok()) {  // no card
    EXPECT_NE(library.status().message().find("does not start"), std::string::npos) << library.status().message();
  }
  EXPECT_TRUE(is_loaded(real)) << "loading it anew takes a second";
}

}  // namespace
}  // namespace quire::ops::cuda
