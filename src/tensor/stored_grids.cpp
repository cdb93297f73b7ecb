#include "tensor/stored_grids.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "tensor/grids.h"
#include "tensor/stored_values.h"

namespace quire {
namespace {

template <typename T>
T read_as(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

float half_of(const uint8_t* bytes) {
  return half_to_float(read_as<uint16_t>(bytes));
}

constexpr float kIq2Magnitudes[] = {8, 25, 43};
constexpr float kIq3XxsMagnitudes[] = {4, 12, 20, 28, 36, 44, 52, 62};
constexpr float kIq3SMagnitudes[] = {1, 3, 5, 7, 9, 11, 13, 15};

// Which magnitude value k of a point has.
template <typename Grid>
size_t of_point(const Grid& grid, int64_t point, int64_t k) {
  return (grid.at(static_cast<size_t>(point)) >> (8 * k)) & 0xff;
}

float sign_of(int bit) {
  return bit != 0 ? -1.0f : 1.0f;
}

// Sign of value k of eight out of seven bits: the last makes their number even.
float sign_of_seven(uint32_t bits, int64_t k) {
  const uint32_t seven = bits & 0x7f;
  return sign_of(k < 7 ? (seven >> k) & 1 : std::popcount(seven) % 2);
}

// Two numbers of 4 bits a byte, the low half first.
int half_byte(const uint8_t* bytes, int64_t index) {
  return (bytes[index / 2] >> (index % 2 * 4)) & 0x0f;
}

float iq2_scale(const uint8_t* block, int s) {
  return half_of(block) * (static_cast<float>(s) + 0.5f) * 0.25f;
}

float iq2_xxs(const uint8_t* block, int64_t i) {
  const uint8_t* group = block + 2 + i / 32 * 8;
  const int64_t eight = i % 32 / 8;
  const auto word = read_as<uint32_t>(group + 4);
  const float magnitude = kIq2Magnitudes[of_point(kIq2XxsGrid, group[eight], i % 8)];
  return iq2_scale(block, static_cast<int>(word >> 28)) * magnitude * sign_of_seven(word >> (7 * eight), i % 8);
}

float iq2_xs(const uint8_t* block, int64_t i) {
  const auto word = read_as<uint16_t>(block + 2 + i / 8 * 2);
  const float magnitude = kIq2Magnitudes[of_point(kIq2XsGrid, word & 511, i % 8)];
  return iq2_scale(block, half_byte(block + 66, i / 16)) * magnitude * sign_of_seven(word >> 9, i % 8);
}

float iq2_s(const uint8_t* block, int64_t i) {
  const int64_t eight = i / 8;
  const int high = (block[66 + eight / 4] >> (eight % 4 * 2)) & 3;
  const float magnitude = kIq2Magnitudes[of_point(kIq2SGrid, block[2 + eight] | high << 8, i % 8)];
  return iq2_scale(block, half_byte(block + 74, i / 16)) * magnitude * sign_of((block[34 + eight] >> (i % 8)) & 1);
}

float iq3_xxs(const uint8_t* block, int64_t i) {
  const auto word = read_as<uint32_t>(block + 66 + i / 32 * 4);
  const float scale = half_of(block) * (static_cast<float>(word >> 28) + 0.5f) * 0.5f;
  const float magnitude = kIq3XxsMagnitudes[of_point(kIq3XxsGrid, block[2 + i / 4], i % 4)];
  return scale * magnitude * sign_of_seven(word >> (7 * (i % 32 / 8)), i % 8);
}

float iq3_s(const uint8_t* block, int64_t i) {
  const int64_t four = i / 4;
  const int high = (block[66 + four / 8] >> (four % 8)) & 1;
  const float scale = half_of(block) * static_cast<float>(2 * half_byte(block + 106, i / 32) + 1);
  const float magnitude = kIq3SMagnitudes[of_point(kIq3SGrid, block[2 + four] | high << 8, i % 4)];
  return scale * magnitude * sign_of((block[74 + i / 8] >> (i % 8)) & 1);
}

float iq1_s(const uint8_t* block, int64_t i) {
  const int64_t eight = i / 8;
  const auto word = read_as<uint16_t>(block + 34 + i / 32 * 2);
  const int high = (word >> (3 * (eight % 4))) & 7;
  const float scale = half_of(block) * static_cast<float>(2 * ((word >> 12) & 7) + 1);
  const float whole = static_cast<float>(of_point(kIq1Grid, block[2 + eight] | high << 8, i % 8)) - 1.0f;
  return scale * (whole + sign_of(word >> 15) * 0.125f);
}

float iq1_m(const uint8_t* block, int64_t i) {
  const int64_t eight = i / 8;
  uint16_t d = 0;
  for (int word = 0; word < 4; ++word)
    d = static_cast<uint16_t>(d | (read_as<uint16_t>(block + 48 + word * 2) >> 12) << (4 * word));
  const int s = (read_as<uint16_t>(block + 48 + i / 64 * 2) >> (i / 16 % 4 * 3)) & 7;
  const int high = half_byte(block + 32, eight);
  const float scale = half_to_float(d) * static_cast<float>(2 * s + 1);
  const float whole = static_cast<float>(of_point(kIq1Grid, block[eight] | (high & 7) << 8, i % 8)) - 1.0f;
  return scale * (whole + sign_of(high & 8) * 0.125f);
}

}  // namespace

float grid_value(DType dtype, const uint8_t* block, int64_t i) {
  switch (dtype) {
    case DType::kIQ2_XXS:
      return iq2_xxs(block, i);
    case DType::kIQ2_XS:
      return iq2_xs(block, i);
    case DType::kIQ2_S:
      return iq2_s(block, i);
    case DType::kIQ3_XXS:
      return iq3_xxs(block, i);
    case DType::kIQ3_S:
      return iq3_s(block, i);
    case DType::kIQ1_S:
      return iq1_s(block, i);
    case DType::kIQ1_M:
      return iq1_m(block, i);
    default:
      check_failed("dtype is of a grid", __FILE__, __LINE__, name(dtype));
  }
}

}  // namespace quire
