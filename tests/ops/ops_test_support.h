// What the tests of ops share: backends by name, random weights in every stored format, comparison.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "tensor/tensor.h"
#include "tests/cards/card.h"
#include "types/activation_dtype.h"

namespace quire::ops::testing {

// Names of backends that every op is tested on; the reference is what they are compared with.
inline const std::vector<std::string> kCpuIsas = {"portable", "avx2", "avx512"};
inline const std::vector<std::string> kDevices = {"portable", "avx2", "avx512", "cuda"};
inline const std::vector<DType> kWeightFormats = {DType::kF32,  DType::kF16,  DType::kBF16,
                                                  DType::kQ4_0, DType::kQ4_1, DType::kQ8_0};
inline const std::vector<DType> kAllWeightFormats = {
    DType::kF32,       DType::kF16,      DType::kBF16,    DType::kQ4_0,    DType::kQ4_1,    DType::kQ8_0,
    DType::kQ5_0,      DType::kQ5_1,     DType::kQ2_K,    DType::kQ3_K,    DType::kQ4_K,    DType::kQ5_K,
    DType::kQ6_K,      DType::kIQ4_NL,   DType::kIQ4_XS,  DType::kMXFP4,   DType::kIQ2_XXS, DType::kIQ2_XS,
    DType::kIQ2_S,     DType::kIQ3_XXS,  DType::kIQ3_S,   DType::kIQ1_S,   DType::kIQ1_M,   DType::kTQ1_0,
    DType::kTQ2_0,     DType::kNVFP4,    DType::kQ8_K,    DType::kU4_32,   DType::kU4_64,   DType::kU4_128,
    DType::kU4_32_F32, DType::kI8_32,    DType::kI8_128,  DType::kI8_32_Z, DType::kNF4,     DType::kFP4,
    DType::kU4_64_HZ,  DType::kU4_32_FZ, DType::kI8_64_HZ};
inline const std::vector<DType> kKvFormats = {DType::kF32,    DType::kF16,    DType::kBF16,
                                              DType::kF8E4M3, DType::kF8E5M2, DType::kI8};

using cards::is_card;

// nullptr when this machine lacks the set, or the card: the test says so and skips.
std::unique_ptr<Backend> make_backend(const std::string& isa, int threads = 2,
                                      ActivationDType activation_dtype = ActivationDType::kAuto);

// What 64 random bits are of a normal distribution whose deviation is 1; up to 4.5. From a table: tests draw numbers by
// the million, and std::normal_distribution would take a third of their time.
float normal_of(uint64_t bits);

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}
  int64_t between(int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(engine_); }
  float normal(float deviation = 1.0f) { return deviation * normal_of(engine_()); }
  std::vector<float> normals(int64_t count, float deviation = 1.0f) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = normal(deviation);
    return values;
  }

 private:
  std::mt19937_64 engine_;
};

uint16_t half_bits(float value);  // nearest, for values that a half has room for

// A matrix [rows, columns] as a checkpoint stores it, or as pack() is given it where rows end with their own scales, at
// an address that is only 2-byte aligned. Values are about 1 / sqrt(columns) in size; of a block of codes every bit but
// those of its f16 scales is random, and so are codes of 8-bit floats, but that all are numbers.
class StoredWeights {
 public:
  StoredWeights(DType dtype, int64_t rows, int64_t columns, Random& random);
  TensorView view() const;

 private:
  DType dtype_;
  int64_t rows_;
  int64_t columns_;
  std::vector<uint8_t> bytes_;
};

// The values of a matrix, row by row.
std::vector<float> values_of(const TensorView& stored);

// Largest |a - b| / (1 + |b|); infinity where one is not a number.
double largest_difference(const std::vector<float>& a, const std::vector<float>& b);

inline bool same_bits(const float* a, const float* b, int64_t count) {
  return std::memcmp(a, b, static_cast<size_t>(count) * sizeof(float)) == 0;
}

}  // namespace quire::ops::testing

#define QUIRE_BACKEND_OR_SKIP(backend, isa)                \
  auto backend = ::quire::ops::testing::make_backend(isa); \
  if (backend == nullptr) GTEST_SKIP() << "this machine lacks " << (isa)
