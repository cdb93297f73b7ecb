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
  // 256 values whose magnitudes are points of a grid (grids.h), eight values a point, those of IQ3 four; bit k of a
  // point's signs is value k's. Where a word has but seven of them the eighth makes the number of minuses even.
  // 8 groups of 32: f16 d, then for each group 4 bytes of points and a word: four times 7 signs, 4 bits s;
  // value = d * (s + 1/2) / 4 * +-{8, 25, 43}[point]
  kIQ2_XXS,
  // 16 groups of 16: f16 d, 32 words of 16 bits (9 of a point, 7 signs), 8 bytes of two s, low half first; value as
  // above
  kIQ2_XS,
  // 16 groups of 16: f16 d, 32 bytes of points, 32 of signs, 8 of the points' upper two bits, 8 of two s; value as
  // above
  kIQ2_S,
  // 8 groups of 32: f16 d, 64 bytes of points, 8 words as IQ2_XXS has them;
  // value = d * (s + 1/2) / 2 * +-{4, 12, 20, 28, 36, 44, 52, 62}[point]
  kIQ3_XXS,
  // 8 groups of 32: f16 d, 64 bytes of points, 8 of their ninth bits, 32 of signs, 4 of two s;
  // value = d * (2 s + 1) * +-{1, 3, 5, 7, 9, 11, 13, 15}[point]
  kIQ3_S,
  // 8 groups of 32: f16 d, 32 bytes of points, 8 words of 16 bits: four times a point's upper three bits, 3 bits s, a
  // bit for the sign of 1/8; value = d * (2 s + 1) * ({-1, 0, 1}[point] +- 1/8)
  kIQ1_S,
  // 16 groups of 16: 32 bytes of points, 32 half bytes (a point's upper three bits, the sign of 1/8 of its eight
  // values), 4 words of 16 bits: four times 3 bits s, 4 bits of f16 d, the lowest first; value as above
  kIQ1_M,
  // 48 bytes of five values, 4 of four, f16 d. A byte is a fraction of 256ths whose digits of base 3, the first one
  // foremost, are q of values a plane apart; planes are of 32 values, then five of 16, then four of 4;
  // value = d * (q - 1)
  kTQ1_0,
  kTQ2_0,  // 64 bytes of 2-bit q in planes as Q2_K has them, f16 d;                    value = d * (q - 1)
  // 4 groups of 16: 4 bytes e as F8_E4M3 without a sign, whose 0x7f is 0; then 8 bytes of q as Q4_0's a group;
  // value = e / 2 * kMxfp4Levels[q]
  kNVFP4,
  kQ8_K,        // 256 values: f32 d, 256 int8 q, 32 bytes that only some products need;         value = d * q
  kF8E4M3_128,  // F8_E4M3 in rows with a float for every 128 columns (ops/quantise.h); no file's own
  kF8E4M3_32,   // the same for every 32
  // What the codes of AWQ, GPTQ, compressed-tensors, bitsandbytes and HQQ are held as (nn/coded_weights.h); no file's
  // own. Codes of 4 bits lie in groups of 32 as Q4_0's.
  kU4_32,      // 32 values: f16 d, a byte z, 16 bytes of q;                              value = d * (q - z)
  kU4_64,      // the same of 64 values
  kU4_128,     // and of 128
  kU4_32_F32,  // 32 values: f32 d, a byte z, 16 bytes of q;                              value = d * (q - z)
  kI8_32,      // 32 values: f32 d, 32 int8 q;                                            value = d * q
  kI8_128,     // the same of 128 values
  kI8_32_Z,    // 32 values: f32 d, int16 z, 32 int8 q;                                   value = d * (q - z)
  kNF4,        // 64 values: f32 d, 32 bytes of q;                                        value = d * kNf4Levels[q]
  kFP4,        // the same with kFp4Levels
  kU4_64_HZ,   // 64 values: f16 d, f16 z, 32 bytes of q;                                 value = d * (q - z)
  kU4_32_FZ,   // 32 values: f32 d, f32 z, 16 bytes of q;                                 value = d * (q - z)
  kI8_64_HZ,   // 64 values: f16 d, f16 z, 64 int8 q;                                     value = d * (q + 128 - z)
};

inline constexpr int kNumDTypes = 47;

// The levels of IQ4_NL and IQ4_XS: 4 bits say which. Closer together around 0, where weights are.
inline constexpr int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Twice the values of OCP's FP4 (E2M1): a bit of sign, 2 of exponent, 1 of fraction.
inline constexpr int8_t kMxfp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

// The levels of bitsandbytes' nf4: quantiles of a normal distribution (Dettmers and others, 2023), and of its fp4.
inline constexpr float kNf4Levels[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};
inline constexpr float kFp4Levels[16] = {
    0.0f,
    0.0052083334885537624f,
    0.6666666865348816f,
    1.0f,
    0.3333333432674408f,
    0.5f,
    0.1666666716337204f,
    0.25f,
    0.0f,
    -0.0052083334885537624f,
    -0.6666666865348816f,
    -1.0f,
    -0.3333333432674408f,
    -0.5f,
    -0.1666666716337204f,
    -0.25f,
};

struct DTypeInfo {
  std::string_view name;  // "F32", "Q4_1": GGUF's and safetensors' spelling
  int32_t block_values;   // values a block; 1 for plain types
  int32_t block_bytes;
};

struct DTypeRow {
  DType dtype;
  DTypeInfo info;
};

// In the order of DType.
inline constexpr DTypeRow kDTypeRows[] = {
    {DType::kF32, {"F32", 1, 4}},
    {DType::kF16, {"F16", 1, 2}},
    {DType::kBF16, {"BF16", 1, 2}},
    {DType::kI32, {"I32", 1, 4}},
    {DType::kI64, {"I64", 1, 8}},
    {DType::kQ4_0, {"Q4_0", 32, 18}},
    {DType::kQ4_1, {"Q4_1", 32, 20}},
    {DType::kQ8_0, {"Q8_0", 32, 34}},
    {DType::kI8, {"I8", 1, 1}},
    {DType::kF8E4M3, {"F8_E4M3", 1, 1}},
    {DType::kF8E5M2, {"F8_E5M2", 1, 1}},
    {DType::kQ5_0, {"Q5_0", 32, 22}},
    {DType::kQ5_1, {"Q5_1", 32, 24}},
    {DType::kQ2_K, {"Q2_K", 256, 84}},
    {DType::kQ3_K, {"Q3_K", 256, 110}},
    {DType::kQ4_K, {"Q4_K", 256, 144}},
    {DType::kQ5_K, {"Q5_K", 256, 176}},
    {DType::kQ6_K, {"Q6_K", 256, 210}},
    {DType::kIQ4_NL, {"IQ4_NL", 32, 18}},
    {DType::kIQ4_XS, {"IQ4_XS", 256, 136}},
    {DType::kMXFP4, {"MXFP4", 32, 17}},
    {DType::kU8, {"U8", 1, 1}},
    {DType::kIQ2_XXS, {"IQ2_XXS", 256, 66}},
    {DType::kIQ2_XS, {"IQ2_XS", 256, 74}},
    {DType::kIQ2_S, {"IQ2_S", 256, 82}},
    {DType::kIQ3_XXS, {"IQ3_XXS", 256, 98}},
    {DType::kIQ3_S, {"IQ3_S", 256, 110}},
    {DType::kIQ1_S, {"IQ1_S", 256, 50}},
    {DType::kIQ1_M, {"IQ1_M", 256, 56}},
    {DType::kTQ1_0, {"TQ1_0", 256, 54}},
    {DType::kTQ2_0, {"TQ2_0", 256, 66}},
    {DType::kNVFP4, {"NVFP4", 64, 36}},
    {DType::kQ8_K, {"Q8_K", 256, 292}},
    {DType::kF8E4M3_128, {"F8_E4M3_128", 1, 1}},
    {DType::kF8E4M3_32, {"F8_E4M3_32", 1, 1}},
    {DType::kU4_32, {"INT4_32", 32, 19}},
    {DType::kU4_64, {"INT4_64", 64, 35}},
    {DType::kU4_128, {"INT4_128", 128, 67}},
    {DType::kU4_32_F32, {"INT4_32_F32", 32, 21}},
    {DType::kI8_32, {"INT8_32", 32, 36}},
    {DType::kI8_128, {"INT8_128", 128, 132}},
    {DType::kI8_32_Z, {"INT8_32_Z", 32, 38}},
    {DType::kNF4, {"NF4", 64, 36}},
    {DType::kFP4, {"FP4", 64, 36}},
    {DType::kU4_64_HZ, {"INT4_64_HZ", 64, 36}},
    {DType::kU4_32_FZ, {"INT4_32_FZ", 32, 24}},
    {DType::kI8_64_HZ, {"INT8_64_HZ", 64, 68}},
};

static_assert(
    [] {
      int32_t num_rows = 0;
      for (const DTypeRow& row : kDTypeRows) {
        if (static_cast<int32_t>(row.dtype) != num_rows++) return false;
      }
      return num_rows == kNumDTypes;
    }(),
    "kDTypeRows has each DType, in order");

constexpr DTypeInfo info(DType dtype) {
  const auto index = static_cast<int32_t>(dtype);
  return index < kNumDTypes ? kDTypeRows[index].info : DTypeInfo{"?", 1, 0};
}

// Of the formats of coded weights, where a block's parts lie. head_bytes is 0 for all others.
struct CodedBlock {
  int32_t head_bytes;      // of d: 2 of f16, 4 of f32
  int32_t zero_bytes;      // of z: 1, or 2 of int16; 0: there is none
  int32_t bits;            // of a code
  bool fractions = false;  // z is a fraction: 2 bytes of f16, or 4 of f32
};

constexpr CodedBlock coded_block(DType dtype) {
  switch (dtype) {
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
      return {2, 1, 4};
    case DType::kU4_32_F32:
      return {4, 1, 4};
    case DType::kI8_32:
    case DType::kI8_128:
      return {4, 0, 8};
    case DType::kI8_32_Z:
      return {4, 2, 8};
    case DType::kNF4:
    case DType::kFP4:
      return {4, 0, 4};
    case DType::kU4_64_HZ:
      return {2, 2, 4, true};
    case DType::kU4_32_FZ:
      return {4, 4, 4, true};
    case DType::kI8_64_HZ:
      return {2, 2, 8, true};
    default:
      return {0, 0, 0};
  }
}

constexpr std::string_view name(DType dtype) {
  return info(dtype).name;
}

// Bytes of one row of `values` values. REQUIRES: values is a multiple of block_values.
constexpr int64_t row_bytes(DType dtype, int64_t values) {
  return values / info(dtype).block_values * info(dtype).block_bytes;
}

}  // namespace quire
