// Weights as checkpoints store them (tensor/dtype.h), read eight values at a time. Arithmetic is that of
// ops/reference/stored_values.cpp: scales times codes are whole in a float and only the sum with a minimum is rounded,
// fused or not, so that values are the reference's to the bit.
#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/coded_formats.h"
#include "ops/cuda/device.cuh"
#include "ops/cuda/float8.cuh"
#include "ops/quantise.h"
#include "tensor/dtype.h"

namespace quire::ops::cuda {

// --- numbers

__device__ inline float half_value(uint32_t bits) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
}
__device__ inline float bfloat16_value(uint32_t bits) {
  return __uint_as_float(bits << 16);
}
__device__ inline float float8_e4m3_value(uint32_t code) {
  return lower_half(halves_of_float8(code));
}
// 2^(e - 128), of which the two smallest are denormal.
__device__ inline float power_of_two(uint32_t e) {
  return __uint_as_float(e >= 2 ? (e - 1) << 23 : 0x00200000u << e);
}

// Level `code` of a table of 16 bytes that lie in four words; the compiler has them as constants.
__device__ inline int level(const uint32_t (&words)[4], uint32_t code) {
  const uint32_t low = (code & 4) != 0 ? words[1] : words[0];
  const uint32_t high = (code & 4) != 0 ? words[3] : words[2];
  return static_cast<int8_t>(((code & 8) != 0 ? high : low) >> (code % 4 * 8));
}
struct Levels {
  uint32_t words[4];
};
// With `shift` added to each.
constexpr Levels levels_of(const int8_t (&table)[16], int shift = 0) {
  Levels levels = {};
  for (int i = 0; i < 16; ++i) {
    const auto byte = static_cast<uint8_t>(table[i] + shift);
    levels.words[i / 4] |= static_cast<uint32_t>(byte) << (i % 4 * 8);
  }
  return levels;
}

// --- bytes of memory at any alignment (load16: of 2)

__device__ inline uint32_t load16(const uint8_t* at) {
  return *reinterpret_cast<const uint16_t*>(at);
}
__device__ inline float load_half(const uint8_t* at) {
  return half_value(load16(at));
}
__device__ inline float load_float(const uint8_t* at) {
  return __uint_as_float(at[0] | uint32_t{at[1]} << 8 | uint32_t{at[2]} << 16 | uint32_t{at[3]} << 24);
}

// --- scales of the K formats

struct ScaleAndMinimum {
  float scale;
  float minimum;
};

// s and m of group 0..7 of Q4_K and Q5_K from the block's first 16 bytes: d and e, then 12 bytes of which the first
// four have 6 bits of the first four s, the next four the same of m, and the last four the lower 4 bits of the last
// four s, below those of m; the upper 2 are the spare bits of the first eight.
__device__ inline ScaleAndMinimum scale_and_minimum(const uint32_t (&header)[4], int group) {
  const int shift = group % 4 * 8;
  const uint32_t first = header[1] >> shift;
  const uint32_t second = header[2] >> shift;
  const uint32_t third = header[3] >> shift;
  const bool late = group >= 4;
  const uint32_t s = late ? (third & 0x0f) | ((first >> 2) & 0x30) : first & 0x3f;
  const uint32_t m = late ? ((third >> 4) & 0x0f) | ((second >> 2) & 0x30) : second & 0x3f;
  return {half_value(header[0] & 0xffff) * static_cast<float>(s), half_value(header[0] >> 16) * static_cast<float>(m)};
}

// The same from a block at an alignment of 2.
__device__ inline ScaleAndMinimum scale_and_minimum(const uint8_t* block, int group) {
  uint32_t header[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) header[i] = load16(block + 4 * i) | load16(block + 4 * i + 2) << 16;
  return scale_and_minimum(header, group);
}

// s of group 0..15 of Q3_K: lower 4 bits in the halves of 8 bytes, upper 2 in the quarters of 4.
__device__ inline int scale_of_q3(const uint8_t* scales, int group) {
  const int low = (scales[group % 8] >> (group / 8 * 4)) & 0x0f;
  return low | ((scales[8 + group % 4] >> (group / 4 * 2)) & 3) << 4;
}

// --- eight values of a row, from `index`, a multiple of 8

// `i` within a block whose codes of 4 bits have the 16 low halves first: the code of value i + j.
__device__ inline uint32_t nibble(const uint8_t* codes, int i, int j) {
  return (codes[i % 16 + j] >> (i / 16 * 4)) & 0x0f;
}

template <DType kType>
struct BlockDecoder;

template <>
struct BlockDecoder<DType::kQ4_0> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = load_half(block);
    for (int j = 0; j < 8; ++j) out[j] = d * static_cast<float>(static_cast<int>(nibble(block + 2, i, j)) - 8);
  }
};

template <>
struct BlockDecoder<DType::kQ4_1> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = load_half(block);
    const float m = load_half(block + 2);
    for (int j = 0; j < 8; ++j) out[j] = d * static_cast<float>(nibble(block + 4, i, j)) + m;
  }
};

template <>
struct BlockDecoder<DType::kQ8_0> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = load_half(block);
    for (int j = 0; j < 8; ++j) out[j] = d * static_cast<float>(static_cast<int8_t>(block[2 + i + j]));
  }
};

template <>
struct BlockDecoder<DType::kQ5_0> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = load_half(block);
    const uint32_t fifth = block[2 + i / 8];
    for (int j = 0; j < 8; ++j) {
      const uint32_t q = nibble(block + 6, i, j) | ((fifth >> j) & 1) << 4;
      out[j] = d * static_cast<float>(static_cast<int>(q) - 16);
    }
  }
};

template <>
struct BlockDecoder<DType::kQ5_1> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = load_half(block);
    const float m = load_half(block + 2);
    const uint32_t fifth = block[4 + i / 8];
    for (int j = 0; j < 8; ++j) {
      const uint32_t q = nibble(block + 8, i, j) | ((fifth >> j) & 1) << 4;
      out[j] = d * static_cast<float>(q) + m;
    }
  }
};

template <>
struct BlockDecoder<DType::kQ2_K> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const uint32_t scales = block[i / 16];
    const float scale = load_half(block + 80) * static_cast<float>(scales & 0x0f);
    const float minimum = load_half(block + 82) * static_cast<float>(scales >> 4);
    const uint8_t* codes = block + 16 + i / 128 * 32 + i % 32;
    for (int j = 0; j < 8; ++j) out[j] = scale * static_cast<float>((codes[j] >> (i % 128 / 32 * 2)) & 3) - minimum;
  }
};

template <>
struct BlockDecoder<DType::kQ3_K> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float scale = load_half(block + 108) * static_cast<float>(scale_of_q3(block + 96, i / 16) - 32);
    const uint8_t* codes = block + 32 + i / 128 * 32 + i % 32;
    const uint8_t* third = block + i % 32;
    for (int j = 0; j < 8; ++j) {
      const int q = ((codes[j] >> (i % 128 / 32 * 2)) & 3) | ((third[j] >> (i / 32)) & 1) << 2;
      out[j] = scale * static_cast<float>(q - 4);
    }
  }
};

template <>
struct BlockDecoder<DType::kQ4_K> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const ScaleAndMinimum group = scale_and_minimum(block, i / 32);
    const uint8_t* codes = block + 16 + i / 64 * 32 + i % 32;
    for (int j = 0; j < 8; ++j)
      out[j] = group.scale * static_cast<float>((codes[j] >> (i % 64 / 32 * 4)) & 0x0f) - group.minimum;
  }
};

template <>
struct BlockDecoder<DType::kQ5_K> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const ScaleAndMinimum group = scale_and_minimum(block, i / 32);
    const uint8_t* codes = block + 48 + i / 64 * 32 + i % 32;
    const uint8_t* fifth = block + 16 + i % 32;
    for (int j = 0; j < 8; ++j) {
      const int q = ((codes[j] >> (i % 64 / 32 * 4)) & 0x0f) | ((fifth[j] >> (i / 32)) & 1) << 4;
      out[j] = group.scale * static_cast<float>(q) - group.minimum;
    }
  }
};

template <>
struct BlockDecoder<DType::kQ6_K> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float scale = load_half(block + 208) * static_cast<float>(static_cast<int8_t>(block[192 + i / 16]));
    const uint8_t* low = block + i / 128 * 64 + i % 64;
    const uint8_t* high = block + 128 + i / 128 * 32 + i % 32;
    for (int j = 0; j < 8; ++j) {
      const int q = ((low[j] >> (i % 128 / 64 * 4)) & 0x0f) | ((high[j] >> (i % 128 / 32 * 2)) & 3) << 4;
      out[j] = scale * static_cast<float>(q - 32);
    }
  }
};

template <>
struct BlockDecoder<DType::kIQ4_NL> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    constexpr Levels kLevels = levels_of(kIq4Levels);
    const float d = load_half(block);
    for (int j = 0; j < 8; ++j) out[j] = d * static_cast<float>(level(kLevels.words, nibble(block + 2, i, j)));
  }
};

template <>
struct BlockDecoder<DType::kIQ4_XS> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    constexpr Levels kLevels = levels_of(kIq4Levels);
    const int group = i / 32;
    const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 0x0f;
    const int high = (load16(block + 2) >> (group * 2)) & 3;
    const float scale = load_half(block) * static_cast<float>((low | high << 4) - 32);
    const uint8_t* codes = block + 8 + group * 16;
    for (int j = 0; j < 8; ++j) out[j] = scale * static_cast<float>(level(kLevels.words, nibble(codes, i % 32, j)));
  }
};

template <>
struct BlockDecoder<DType::kMXFP4> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    constexpr Levels kLevels = levels_of(kMxfp4Levels);
    const float scale = power_of_two(*block);
    for (int j = 0; j < 8; ++j) out[j] = scale * static_cast<float>(level(kLevels.words, nibble(block + 1, i, j)));
  }
};

// A scale of NVFP4: F8_E4M3 without a sign, of which 0x7f is 0 and all others are numbers.
__device__ inline float unsigned_float8(uint32_t byte) {
  const uint32_t e = byte & 0x7f;
  if (byte == 0x7f) return 0;
  return e >= 8 ? __uint_as_float((e + (120u << 3)) << 20) : static_cast<float>(e) * 0x1p-9f;
}

template <>
struct BlockDecoder<DType::kNVFP4> {
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    constexpr Levels kLevels = levels_of(kMxfp4Levels);
    const float scale = unsigned_float8(block[i / 16]) / 2;
    const uint8_t* codes = block + 4 + i / 16 * 8;
    for (int j = 0; j < 8; ++j)
      out[j] = scale * static_cast<float>(level(kLevels.words, (codes[j] >> (i % 16 / 8 * 4)) & 0x0fu));
  }
};

// --- coded weights

struct FloatLevels {
  float of[16];
};
constexpr FloatLevels float_levels_of(const float (&table)[16]) {
  FloatLevels levels = {};
  for (int i = 0; i < 16; ++i) levels.of[i] = table[i];
  return levels;
}
static __device__ const FloatLevels kNf4OnCard = float_levels_of(kNf4Levels);
static __device__ const FloatLevels kFp4OnCard = float_levels_of(kFp4Levels);

// From a line of the first cache: as many lanes at once as a shuffle, and none needs to wait for another.
template <DType kType>
__device__ float float_level(uint32_t code) {
  static_assert(kType == DType::kNF4 || kType == DType::kFP4);
  return (kType == DType::kNF4 ? kNf4OnCard : kFp4OnCard).of[code];
}

// Blocks begin at any byte.
template <DType kType>
struct CodedDecoder {
  static constexpr CodedBlock kLayout = coded_block(kType);

  static __device__ uint32_t two_bytes(const uint8_t* at) { return at[0] | uint32_t{at[1]} << 8; }
  static __device__ void decode(const uint8_t* block, int i, float (&out)[8]) {
    const float d = kLayout.head_bytes == 2 ? half_value(two_bytes(block)) : load_float(block);
    const uint8_t* zero = block + kLayout.head_bytes;
    const uint8_t* codes = zero + kLayout.zero_bytes + (kLayout.bits == 8 ? i : i / 32 * 16);
    float fraction = 0;
    if (kLayout.fractions) fraction = kLayout.zero_bytes == 2 ? half_value(two_bytes(zero)) : load_float(zero);
    for (int j = 0; j < 8; ++j) {
      const int q = kLayout.bits == 8 ? static_cast<int8_t>(codes[j]) : static_cast<int>(nibble(codes, i % 32, j));
      if constexpr (kType == DType::kNF4 || kType == DType::kFP4) {
        out[j] = d * float_level<kType>(static_cast<uint32_t>(q));
      } else if constexpr (kLayout.fractions) {
        out[j] = d * (static_cast<float>(kLayout.bits == 8 ? q + 128 : q) - fraction);
      } else if constexpr (kLayout.zero_bytes == 2) {
        out[j] = d * static_cast<float>(q - static_cast<int16_t>(two_bytes(zero)));
      } else {
        out[j] = d * static_cast<float>(kLayout.zero_bytes == 0 ? q : q - *zero);
      }
    }
  }
};
#define QUIRE_CODED_DECODER(name) \
  template <>                     \
  struct BlockDecoder<DType::name> : CodedDecoder<DType::name> {};
QUIRE_CODED_FORMATS(QUIRE_CODED_DECODER)
#undef QUIRE_CODED_DECODER

// Values [index, index + 8) of the row of `columns` values that begins at `row`; past the row's end zeros. Rows are
// aligned to what their type holds whole: 2, or 1 where codes are bytes.
template <DType kType>
__device__ void decode(const uint8_t* row, int64_t columns, int64_t index, float (&out)[8]) {
  constexpr DTypeInfo kFormat = info(kType);
  if constexpr (kFormat.block_values > 1) {
    const uint8_t* block = row + index / kFormat.block_values * kFormat.block_bytes;
    BlockDecoder<kType>::decode(block, static_cast<int>(index % kFormat.block_values), out);
  } else {
    const float scale =
        has_row_scales(kType) ? load_float(row + columns + scale_of_column(kType, index) * sizeof(float)) : 1.0f;
    const uint8_t* at = row + index * kFormat.block_bytes;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      out[j] = 0;
      if (index + j >= columns) continue;
      if constexpr (kType == DType::kF32) out[j] = load_float(at + 4 * j);
      if constexpr (kType == DType::kF16) out[j] = load_half(at + 2 * j);
      if constexpr (kType == DType::kBF16) out[j] = bfloat16_value(load16(at + 2 * j));
      if constexpr (has_row_scales(kType)) out[j] = float8_e4m3_value(at[j]) * scale;
    }
  }
}

// --- formats known when a kernel is compiled

template <DType kType>
struct TypeConstant {
  static constexpr DType value = kType;
};

// body(TypeConstant<dtype>{}) for the formats of has_decoder(); false for any other.
template <typename Body>
bool with_decoder(DType dtype, const Body& body) {
  switch (dtype) {
#define QUIRE_DECODER(name)            \
  case DType::name:                    \
    body(TypeConstant<DType::name>{}); \
    return true;
    QUIRE_DECODER(kF32)
    QUIRE_DECODER(kF16)
    QUIRE_DECODER(kBF16)
    QUIRE_DECODER(kF8E4M3)
    QUIRE_DECODER(kF8E4M3_128)
    QUIRE_DECODER(kF8E4M3_32)
    QUIRE_DECODER(kQ4_0)
    QUIRE_DECODER(kQ4_1)
    QUIRE_DECODER(kQ5_0)
    QUIRE_DECODER(kQ5_1)
    QUIRE_DECODER(kQ8_0)
    QUIRE_DECODER(kQ2_K)
    QUIRE_DECODER(kQ3_K)
    QUIRE_DECODER(kQ4_K)
    QUIRE_DECODER(kQ5_K)
    QUIRE_DECODER(kQ6_K)
    QUIRE_DECODER(kIQ4_NL)
    QUIRE_DECODER(kIQ4_XS)
    QUIRE_DECODER(kMXFP4)
    QUIRE_DECODER(kNVFP4)
    QUIRE_CODED_FORMATS(QUIRE_DECODER)
#undef QUIRE_DECODER
    default:
      return false;
  }
}

}  // namespace quire::ops::cuda
