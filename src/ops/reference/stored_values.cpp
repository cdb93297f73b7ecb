#include "ops/reference/stored_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::ops::reference {
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

float stored_value(DType dtype, const void* row, int64_t index) {
  const DTypeInfo format = info(dtype);
  const uint8_t* block = static_cast<const uint8_t*>(row) + index / format.block_values * format.block_bytes;
  const int64_t i = index % format.block_values;
  switch (dtype) {
    case DType::kF32:
      return load<float>(block);
    case DType::kF16:
      return half_to_float(load<uint16_t>(block));
    case DType::kBF16:
      return bfloat16_to_float(load<uint16_t>(block));
    case DType::kQ4_0: {
      const float d = half_to_float(load<uint16_t>(block));
      return d * static_cast<float>(nibble(block + 2, i) - 8);
    }
    case DType::kQ4_1: {
      const float d = half_to_float(load<uint16_t>(block));
      const float m = half_to_float(load<uint16_t>(block + 2));
      return d * static_cast<float>(nibble(block + 4, i)) + m;
    }
    case DType::kQ8_0: {
      const float d = half_to_float(load<uint16_t>(block));
      return d * static_cast<float>(load<int8_t>(block + 2 + i));
    }
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      break;
  }
  check_failed("is_weight_format(dtype)", __FILE__, __LINE__, name(dtype));
}

bool is_weight_format(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ8_0:
      return true;
    case DType::kI32:
    case DType::kI64:
    case DType::kI8:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
      return false;
  }
  return false;
}

}  // namespace quire::ops::reference
