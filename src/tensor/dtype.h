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
  kQ5_0,    // 32 values: f16 d, 4 bytes h, 16 bytes as Q4_0's; bit i of h is q's fifth;  value = d * (q - 16)
  kQ5_1,    // 32 values: f16 d, f16 m, then as Q5_0;                                     value = d * q + m
  // The K formats have 256 values in groups with scales of their own. Codes of b bits lie in planes: the lowest b bits
  // of a run of 32 bytes are its first 32 values, the next b bits the next 32, and so on; then the next run.
  // 16 groups of 16: 16 bytes of s (low half) and m, 64 bytes of 2-bit q, f16 d, f16 e;    value = d * s * q - e * m
  kQ2_K,
  // 16 groups of 16: 32 bytes of q's third bit, 64 of the lower two, 12 bytes of 6-bit s (see stored_values.cpp),
  // f16 d;                                                                    value = d * (s - 32) * (q - 4)
  kQ3_K,
  // 8 groups of 32: f16 d, f16 e, 12 bytes of 6-bit s and m (see stored_values.cpp), 128 bytes of 4-bit q;
  // value = d * s * q - e * m
  kQ4_K,
  kQ5_K,  // as Q4_K, with 32 bytes of q's fifth bit before the 128
  // 16 groups of 16: 128 bytes of q's lower 4 bits in runs of 64, 64 bytes of the upper two, 16 int8 s, f16 d;
  // value = d * s * (q - 32)
  kQ6_K,
  kIQ4_NL,  // as Q4_0;                                                                   value = d * kIq4Levels[q]
  // 8 groups of 32: f16 d, 16 bits of the s' upper two, 4 bytes of their lower four, then 16 bytes of q as Q4_0's a
  // group;                                                                    value = d * (s - 32) * kIq4Levels[q]
  kIQ4_XS,
  kMXFP4,  // OCP MX: 32 values: a byte e, 16 bytes of q as Q4_0's;  value = 2^(e - 128) * kMxfp4Levels[q]
  kU8,     // bytes that a format of several tensors is made of
};

inline constexpr int kNumDTypes = 22;

// The levels of IQ4_NL and IQ4_XS: 4 bits say which. Closer together around 0, where weights are.
inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the values of OCP's FP4 (E2M1): a bit of sign, 2 of exponent, 1 of fraction.
inline constexpr int8_t kMxfp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

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
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ2_K:
      return {"Q2_K", 256, 84};
    case DType::kQ3_K:
      return {"Q3_K", 256, 110};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
    case DType::kIQ4_NL:
      return {"IQ4_NL", 32, 18};
    case DType::kIQ4_XS:
      return {"IQ4_XS", 256, 136};
    case DType::kMXFP4:
      return {"MXFP4", 32, 17};
    case DType::kU8:
      return {"U8", 1, 1};
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
