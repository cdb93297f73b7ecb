// Element types: plain ones, GGUF's blocks of quantised values, and the 8-bit floats of OCP's FP8.
#pragma once

#include <cstdint>
#include <string_view>

namespace quire {

enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kI64,
  kQ4_0,  // 32 values: f16 d, 16 bytes of two 4-bit q (low half: values 0..15); value = d * (q - 8)
  kQ4_1,  // 32 values: f16 d, f16 m, 16 bytes as above;                        value = d * q + m
  kQ8_0,  // 32 values: f16 d, 32 int8 q;                                       value = d * q
  kI8,
  kF8E4M3,  // OCP FP8: sign, 4 bits of exponent (bias 7), 3 of fraction; largest 448, no infinity, 0x7f and 0xff NaN
  kF8E5M2,  // OCP FP8: sign, 5 bits of exponent (bias 15), 2 of fraction; the upper half of an F16
};

inline constexpr int kNumDTypes = 11;

struct DTypeInfo {
  std::string_view name;  // "F32", "Q4_1": GGUF's and safetensors' spelling
  int32_t block_values;   // values a block; 1 for plain types
  int32_t block_bytes;
};

constexpr DTypeInfo info(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kI32:
      return {"I32", 1, 4};
    case DType::kI64:
      return {"I64", 1, 8};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kI8:
      return {"I8", 1, 1};
    case DType::kF8E4M3:
      return {"F8_E4M3", 1, 1};
    case DType::kF8E5M2:
      return {"F8_E5M2", 1, 1};
  }
  return {"?", 1, 0};
}

constexpr std::string_view name(DType dtype) {
  return info(dtype).name;
}

// Bytes of one row of `values` values. REQUIRES: values is a multiple of block_values.
constexpr int64_t row_bytes(DType dtype, int64_t values) {
  return values / info(dtype).block_values * info(dtype).block_bytes;
}

}  // namespace quire
