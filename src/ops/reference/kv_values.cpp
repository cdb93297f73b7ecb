#include "ops/reference/kv_values.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "tensor/stored_values.h"

namespace quire::ops::reference {
namespace {

// A float of fewer bits: value = +-(1 + f / 2^fraction_bits) * 2^(e - bias), denormal where e is 0.
struct SmallFloat {
  int fraction_bits;
  int bias;
  int sign;     // its bit
  int largest;  // code of what too large values become
  int nan;
};

SmallFloat small_float(DType dtype) {
  switch (dtype) {
    case DType::kF16:
      return {10, 15, 0x8000, 0x7c00, 0x7e00};
    case DType::kBF16:
      return {7, 127, 0x8000, 0x7f80, 0x7fc0};
    case DType::kF8E4M3:
      return {3, 7, 0x80, 0x7e, 0x7f};
    case DType::kF8E5M2:
      return {2, 15, 0x80, 0x7b, 0x7e};
    default:
      check_failed("a small float", __FILE__, __LINE__, name(dtype));
  }
}

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}
template <typename T>
void store(uint8_t* bytes, T value) {
  std::memcpy(bytes, &value, sizeof(value));
}

// Number d of a token's vector, and the token's scale, within the head's part of a block.
struct Place {
  uint8_t* head;    // of the block
  int64_t token;    // within the block
  int64_t first;    // index of number 0
  int64_t stride;   // from a number to the next
  int64_t numbers;  // of the head: where the scales begin
};

Place place_of(const KvCacheView& cache, bool is_key, int64_t slot, int64_t head) {
  const int64_t block = slot / cache.block_size;
  const int64_t token = slot % cache.block_size;
  auto* memory = static_cast<uint8_t*>(is_key ? cache.keys : cache.values);
  const bool by_token = !is_key || cache.keys_by_token;
  return {.head = memory + block * block_stride(cache) + head * head_bytes(cache),
          .token = token,
          .first = by_token ? token * cache.head_dim : token,
          .stride = by_token ? 1 : cache.block_size,
          .numbers = int64_t{cache.head_dim} * cache.block_size};
}

void store_int8(const Place& place, const float* vector, int64_t head_dim) {
  float largest = 0;
  bool finite = true;
  for (int64_t d = 0; d < head_dim; ++d) {
    largest = std::max(largest, std::fabs(vector[d]));
    finite = finite && std::isfinite(vector[d]);
  }
  const float scale = finite ? largest / 127.0f : std::numeric_limits<float>::quiet_NaN();
  for (int64_t d = 0; d < head_dim; ++d) {
    float quotient = 0;
    if (finite && scale > 0) quotient = std::clamp(std::nearbyint(vector[d] / scale), -127.0f, 127.0f);
    store(place.head + place.first + d * place.stride, static_cast<int8_t>(quotient));
  }
  store(place.head + place.numbers + place.token * static_cast<int64_t>(sizeof(float)), scale);
}

}  // namespace

uint16_t float_to_code(DType dtype, float value) {
  const SmallFloat format = small_float(dtype);
  const int sign = std::signbit(value) ? format.sign : 0;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isnan(magnitude)) return static_cast<uint16_t>(sign | format.nan);
  if (std::isinf(magnitude)) return static_cast<uint16_t>(sign | format.largest);
  const int lowest = 1 - format.bias;
  const int exponent = magnitude == 0 ? lowest : std::max(lowest, std::ilogb(magnitude));
  // The implicit one of `units` adds 1 to the exponent, and so does rounding up to the next power of two.
  const auto units = static_cast<int>(std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent)));
  const int code = ((exponent - lowest) << format.fraction_bits) + units;
  return static_cast<uint16_t>(sign | std::min(code, format.largest));
}

float code_to_float(DType dtype, uint16_t code) {
  if (dtype == DType::kF16) return half_to_float(code);
  if (dtype == DType::kBF16) return bfloat16_to_float(code);
  if (dtype == DType::kF8E5M2) return half_to_float(static_cast<uint16_t>(code << 8));
  const SmallFloat format = small_float(dtype);
  const int magnitude = code & (format.sign - 1);
  if (magnitude == format.nan) return std::numeric_limits<float>::quiet_NaN();
  const int fraction = magnitude & ((1 << format.fraction_bits) - 1);
  const int exponent = magnitude >> format.fraction_bits;
  const int units = exponent == 0 ? fraction : fraction + (1 << format.fraction_bits);
  const float value = std::ldexp(static_cast<float>(units), std::max(exponent, 1) - format.bias - format.fraction_bits);
  return (code & format.sign) != 0 ? -value : value;
}

void store_kv(const KvCacheView& cache, bool is_key, int64_t slot, int64_t head, const float* vector) {
  const Place place = place_of(cache, is_key, slot, head);
  if (cache.dtype == DType::kI8) return store_int8(place, vector, cache.head_dim);
  const int64_t size = info(cache.dtype).block_bytes;
  for (int64_t d = 0; d < cache.head_dim; ++d) {
    uint8_t* to = place.head + (place.first + d * place.stride) * size;
    if (cache.dtype == DType::kF32) {
      store(to, vector[d]);
    } else if (size == 2) {
      store(to, float_to_code(cache.dtype, vector[d]));
    } else {
      store(to, static_cast<uint8_t>(float_to_code(cache.dtype, vector[d])));
    }
  }
}

float load_kv(const KvCacheView& cache, bool is_key, int64_t slot, int64_t head, int64_t d) {
  is_key = is_key || cache.values_are_keys;
  const Place place = place_of(cache, is_key, slot, head);
  const int64_t size = info(cache.dtype).block_bytes;
  const uint8_t* from = place.head + (place.first + d * place.stride) * size;
  if (cache.dtype == DType::kF32) return load<float>(from);
  if (cache.dtype == DType::kI8) {
    const auto scale = load<float>(place.head + place.numbers + place.token * static_cast<int64_t>(sizeof(float)));
    return static_cast<float>(load<int8_t>(from)) * scale;
  }
  return code_to_float(cache.dtype, size == 2 ? load<uint16_t>(from) : load<uint8_t>(from));
}

}  // namespace quire::ops::reference
