#include "tensor/stored_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/stored_grids.h"

namespace quire {
namespace {

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

// The 4-bit q of value i: the low halves of the 16 bytes are values 0..15, the high halves 16..31.
int nibble(const uint8_t* quants, int64_t i) {
  return i < 16 ? quants[i] & 0x0f : quants[i - 16] >> 4;
}

// Q5_0 and Q5_1: bit i of 4 bytes.
int fifth_bit(const uint8_t* bytes, int64_t i) {
  return (bytes[i / 8] >> (i % 8)) & 1;
}

// The K formats' q: `bits` of them from planes in runs of run_bytes, value i of the block.
int plane_bits(const uint8_t* planes, int bits, int64_t run_bytes, int64_t i) {
  const int64_t run_values = run_bytes * (8 / bits);
  const uint8_t byte = planes[i / run_values * run_bytes + i % run_bytes];
  const int64_t plane = i % run_values / run_bytes;
  return (byte >> (plane * bits)) & ((1 << bits) - 1);
}

float half_at(const uint8_t* bytes) {
  return half_to_float(load<uint16_t>(bytes));
}

// s of group 0..15 from the 12 bytes of Q3_K: lower 4 bits in the halves of 8 bytes, upper 2 in the quarters of 4.
int scale_of_q3(const uint8_t* scales, int64_t group) {
  const int low = group < 8 ? scales[group] & 0x0f : scales[group - 8] >> 4;
  const int high = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
  return low | high << 4;
}

struct ScaleAndMinimum {
  float scale;
  float minimum;
};

// Of group 0..7 of Q4_K and Q5_K, from the block's begin: 12 bytes behind d and e. The first four s, then the first
// four m, have 6 bits of a byte; of the last four the lower 4 bits share a byte of the last four, s below m, and the
// upper 2 are the spare bits of the first eight.
ScaleAndMinimum scale_and_minimum(const uint8_t* block, int64_t group) {
  const uint8_t* packed = block + 4;
  int s = 0;
  int m = 0;
  if (group < 4) {
    s = packed[group] & 0x3f;
    m = packed[4 + group] & 0x3f;
  } else {
    s = (packed[4 + group] & 0x0f) | (packed[group - 4] >> 6) << 4;
    m = packed[4 + group] >> 4 | (packed[group] >> 6) << 4;
  }
  return {half_at(block) * static_cast<float>(s), half_at(block + 2) * static_cast<float>(m)};
}

float q4_0(const uint8_t* block, int64_t i) {
  return half_at(block) * static_cast<float>(nibble(block + 2, i) - 8);
}

float q4_1(const uint8_t* block, int64_t i) {
  return half_at(block) * static_cast<float>(nibble(block + 4, i)) + half_at(block + 2);
}

float q5_0(const uint8_t* block, int64_t i) {
  const int q = nibble(block + 6, i) | fifth_bit(block + 2, i) << 4;
  return half_at(block) * static_cast<float>(q - 16);
}

float q5_1(const uint8_t* block, int64_t i) {
  const int q = nibble(block + 8, i) | fifth_bit(block + 4, i) << 4;
  return half_at(block) * static_cast<float>(q) + half_at(block + 2);
}

float q8_0(const uint8_t* block, int64_t i) {
  return half_at(block) * static_cast<float>(load<int8_t>(block + 2 + i));
}

float q2_k(const uint8_t* block, int64_t i) {
  const uint8_t scales = block[i / 16];
  const int q = plane_bits(block + 16, 2, 32, i);
  const float scale = half_at(block + 80) * static_cast<float>(scales & 0x0f);
  const float minimum = half_at(block + 82) * static_cast<float>(scales >> 4);
  return scale * static_cast<float>(q) - minimum;
}

float q3_k(const uint8_t* block, int64_t i) {
  const int q = plane_bits(block + 32, 2, 32, i) | plane_bits(block, 1, 32, i) << 2;
  const float scale = half_at(block + 108) * static_cast<float>(scale_of_q3(block + 96, i / 16) - 32);
  return scale * static_cast<float>(q - 4);
}

float q4_k(const uint8_t* block, int64_t i) {
  const ScaleAndMinimum group = scale_and_minimum(block, i / 32);
  const int q = plane_bits(block + 16, 4, 32, i);
  return group.scale * static_cast<float>(q) - group.minimum;
}

float q5_k(const uint8_t* block, int64_t i) {
  const ScaleAndMinimum group = scale_and_minimum(block, i / 32);
  const int q = plane_bits(block + 48, 4, 32, i) | plane_bits(block + 16, 1, 32, i) << 4;
  return group.scale * static_cast<float>(q) - group.minimum;
}

float q6_k(const uint8_t* block, int64_t i) {
  const int q = plane_bits(block, 4, 64, i) | plane_bits(block + 128, 2, 32, i) << 4;
  const float scale = half_at(block + 208) * static_cast<float>(load<int8_t>(block + 192 + i / 16));
  return scale * static_cast<float>(q - 32);
}

// 2^(e - 128), of which the two smallest are denormal.
float power_of(uint8_t e) {
  return std::ldexp(1.0f, static_cast<int>(e) - 128);
}

float iq4_xs(const uint8_t* block, int64_t i) {
  const int64_t group = i / 32;
  const int low = (block[4 + group / 2] >> (group % 2 * 4)) & 0x0f;
  const int high = (load<uint16_t>(block + 2) >> (group * 2)) & 3;
  const float scale = half_at(block) * static_cast<float>((low | high << 4) - 32);
  return scale * static_cast<float>(kIq4Levels[nibble(block + 8 + group * 16, i % 32)]);
}

// Value i of TQ1_0: the digit of its plane.
int ternary_digit(const uint8_t* block, int64_t i) {
  int64_t byte = i % 32;
  int64_t plane = i / 32;
  if (i >= 240) {
    byte = 48 + (i - 240) % 4;
    plane = (i - 240) / 4;
  } else if (i >= 160) {
    byte = 32 + (i - 160) % 16;
    plane = (i - 160) / 16;
  }
  int fraction = block[byte];  // of 256; tripled, its whole part is the next digit
  for (; plane > 0; --plane) fraction = fraction * 3 % 256;
  return fraction * 3 / 256;
}

float nvfp4(const uint8_t* block, int64_t i) {
  const int64_t group = i / 16;
  const int e = block[group] & 0x7f;
  float scale = std::ldexp(static_cast<float>(e < 8 ? e : 8 + e % 8), (e < 8 ? 1 : e / 8) - 10);
  if (block[group] == 0x7f) scale = 0;
  const uint8_t byte = block[4 + group * 8 + i % 8];
  return scale / 2 * static_cast<float>(kMxfp4Levels[i % 16 < 8 ? byte & 0x0f : byte >> 4]);
}

// Of the formats of coded weights (nn/coded_weights.h).
float coded(DType dtype, const uint8_t* block, int64_t i) {
  const CodedBlock layout = coded_block(dtype);
  const float d = layout.head_bytes == 2 ? half_at(block) : load<float>(block);
  const uint8_t* zero = block + layout.head_bytes;
  const uint8_t* codes = zero + layout.zero_bytes;
  const float fraction = !layout.fractions ? 0.0f : layout.zero_bytes == 2 ? half_at(zero) : load<float>(zero);
  if (layout.bits == 8) {
    const int q = load<int8_t>(codes + i);
    if (layout.fractions) return d * (static_cast<float>(q + 128) - fraction);
    return d * static_cast<float>(layout.zero_bytes == 2 ? q - load<int16_t>(zero) : q);
  }
  const int q = nibble(codes + i / 32 * 16, i % 32);
  if (dtype == DType::kNF4) return d * kNf4Levels[q];
  if (dtype == DType::kFP4) return d * kFp4Levels[q];
  if (layout.fractions) return d * (static_cast<float>(q) - fraction);
  return d * static_cast<float>(q - *zero);
}

// Value i of a block.
float block_value(DType dtype, const uint8_t* block, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return load<float>(block);
    case DType::kF16:
      return half_at(block);
    case DType::kBF16:
      return bfloat16_to_float(load<uint16_t>(block));
    case DType::kQ4_0:
      return q4_0(block, i);
    case DType::kQ4_1:
      return q4_1(block, i);
    case DType::kQ8_0:
      return q8_0(block, i);
    case DType::kQ5_0:
      return q5_0(block, i);
    case DType::kQ5_1:
      return q5_1(block, i);
    case DType::kQ2_K:
      return q2_k(block, i);
    case DType::kQ3_K:
      return q3_k(block, i);
    case DType::kQ4_K:
      return q4_k(block, i);
    case DType::kQ5_K:
      return q5_k(block, i);
    case DType::kQ6_K:
      return q6_k(block, i);
    case DType::kIQ4_NL:
      return half_at(block) * static_cast<float>(kIq4Levels[nibble(block + 2, i)]);
    case DType::kIQ4_XS:
      return iq4_xs(block, i);
    case DType::kMXFP4:
      return power_of(*block) * static_cast<float>(kMxfp4Levels[nibble(block + 1, i)]);
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
      return grid_value(dtype, block, i);
    case DType::kTQ1_0:
      return half_at(block + 52) * static_cast<float>(ternary_digit(block, i) - 1);
    case DType::kTQ2_0:
      return half_at(block + 64) * static_cast<float>(plane_bits(block, 2, 32, i) - 1);
    case DType::kNVFP4:
      return nvfp4(block, i);
    case DType::kQ8_K:
      return load<float>(block) * static_cast<float>(load<int8_t>(block + 4 + i));
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kI8_32_Z:
    case DType::kNF4:
    case DType::kFP4:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
    case DType::kI8_64_HZ:
      return coded(dtype, block, i);
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E4M3_128:
    case DType::kF8E4M3_32:
    case DType::kF8E5M2:
    case DType::kU8:
      break;
  }
  check_failed("is_weight_format(dtype)", __FILE__, __LINE__, name(dtype));
}

float value_at(DType dtype, const DTypeInfo& format, const uint8_t* blocks, int64_t index) {
  return block_value(dtype, blocks + index / format.block_values * format.block_bytes, index % format.block_values);
}

}  // namespace

float half_to_float(uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = (bits >> 10) & 0x1f;
  const int fraction = bits & 0x3ff;
  if (exponent == 31) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

float bfloat16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

uint16_t float_to_half(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return sign | 0x7e00;   // NaN
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // from 65520 on, half a step over the largest
  if (magnitude < 0x38800000) {
    // Under 2^-14 the steps are all of 2^-24, as those of the floats from 0.5 on are: the addition rounds.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return sign | static_cast<uint16_t>(std::bit_cast<uint32_t>(shifted) - std::bit_cast<uint32_t>(0.5f));
  }
  magnitude += 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((magnitude - 0x38000000) >> 13);
}

uint16_t float_to_bfloat16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float stored_value(DType dtype, const void* row, int64_t index) {
  return value_at(dtype, info(dtype), static_cast<const uint8_t*>(row), index);
}

void read_stored_row(DType dtype, const void* row, int64_t count, float* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, row, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const DTypeInfo format = info(dtype);
  const auto* blocks = static_cast<const uint8_t*>(row);
  for (int64_t i = 0; i < count; ++i) out[i] = value_at(dtype, format, blocks, i);
}

bool is_weight_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
    case DType::kMXFP4:
    case DType::kIQ2_XXS:
    case DType::kIQ2_XS:
    case DType::kIQ2_S:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S:
    case DType::kIQ1_S:
    case DType::kIQ1_M:
    case DType::kTQ1_0:
    case DType::kTQ2_0:
    case DType::kNVFP4:
    case DType::kQ8_K:
    case DType::kU4_32:
    case DType::kU4_64:
    case DType::kU4_128:
    case DType::kU4_32_F32:
    case DType::kI8_32:
    case DType::kI8_128:
    case DType::kI8_32_Z:
    case DType::kNF4:
    case DType::kFP4:
    case DType::kU4_64_HZ:
    case DType::kU4_32_FZ:
    case DType::kI8_64_HZ:
      return true;
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E4M3_128:
    case DType::kF8E4M3_32:
    case DType::kF8E5M2:
    case DType::kU8:
      return false;
  }
  return false;
}

}  // namespace quire
