#include "ops/cpu/stored_levels.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "ops/cpu/levels.h"
#include "ops/cpu/stored_blocks.h"
#include "tensor/grids.h"
#include "tensor/stored_values.h"

namespace quire::ops::cpu {
namespace {

template <typename T>
T load(const uint8_t* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof(value));
  return value;
}

template <typename Grid>
uint64_t point_of(const Grid& grid, unsigned index) {
  return grid.at(index);
}
uint64_t two_points_of(const auto& grid, unsigned first, unsigned second) {
  return point_of(grid, first) | point_of(grid, second) << 32;
}

// Bit k in bit 3 of byte k.
uint64_t signs_of(unsigned bits) {
  const uint64_t apart = bits * 0x0101010101010101u & 0x8040201008040201u;
  return (apart + 0x7f7f7f7f7f7f7f7fu) >> 4 & 0x0808080808080808u;  // a byte is 0 or carries into its own bit 7 only
}
// Seven signs; the eighth makes their number even.
uint64_t signs_of_seven(unsigned bits) {
  const unsigned seven = bits & 0x7f;
  return signs_of(seven | static_cast<unsigned>(std::popcount(seven) % 2) << 7);
}

void put_eight(StoredGroup& out, size_t eight, uint64_t codes) {
  out.quads[2 * eight] = static_cast<uint32_t>(codes);
  out.quads[2 * eight + 1] = static_cast<uint32_t>(codes >> 32);
}

uint8_t odd(unsigned s) {
  return static_cast<uint8_t>(2 * s + 1);
}
std::array<uint8_t, 2> odd_halves(uint8_t byte) {
  return {odd(byte & 0x0f), odd(byte >> 4)};
}

void read_iq2_xxs(const uint8_t* block, size_t group, StoredGroup& out) {
  const uint8_t* points = block + 2 + group * 8;
  const auto word = load<uint32_t>(points + 4);
  for (size_t i = 0; i < 4; ++i) put_eight(out, i, point_of(kIq2XxsGrid, points[i]) | signs_of_seven(word >> (7 * i)));
  out.small_scales[0] = odd(word >> 28);
}

void read_iq2_xs(const uint8_t* block, size_t group, StoredGroup& out) {
  for (size_t i = 0; i < 4; ++i) {
    const unsigned word = load<uint16_t>(block + 2 + (group * 4 + i) * 2);
    put_eight(out, i, point_of(kIq2XsGrid, word & 511) | signs_of_seven(word >> 9));
  }
  out.small_scales = odd_halves(block[66 + group]);
}

void read_iq2_s(const uint8_t* block, size_t group, StoredGroup& out) {
  for (size_t i = 0; i < 4; ++i) {
    const unsigned high = (block[66 + group] >> (2 * i)) & 3;
    put_eight(out, i, point_of(kIq2SGrid, block[2 + group * 4 + i] | high << 8) | signs_of(block[34 + group * 4 + i]));
  }
  out.small_scales = odd_halves(block[74 + group]);
}

void read_iq3_xxs(const uint8_t* block, size_t group, StoredGroup& out) {
  const uint8_t* points = block + 2 + group * 8;
  const auto word = load<uint32_t>(block + 66 + group * 4);
  for (size_t i = 0; i < 4; ++i) {
    put_eight(out, i, two_points_of(kIq3XxsGrid, points[2 * i], points[2 * i + 1]) | signs_of_seven(word >> (7 * i)));
  }
  out.small_scales[0] = odd(word >> 28);
}

void read_iq3_s(const uint8_t* block, size_t group, StoredGroup& out) {
  const uint8_t* points = block + 2 + group * 8;
  const unsigned high = block[66 + group];
  for (size_t i = 0; i < 4; ++i) {
    const unsigned first = points[2 * i] | (high >> (2 * i) & 1) << 8;
    const unsigned second = points[2 * i + 1] | (high >> (2 * i + 1) & 1) << 8;
    put_eight(out, i, two_points_of(kIq3SGrid, first, second) | signs_of(block[74 + group * 4 + i]));
  }
  out.small_scales[0] = odd((block[106 + group / 2] >> (group % 2 * 4)) & 0x0f);
}

// Codes of IQ1: whether 1/8 is taken away in bit 2.
uint64_t iq1_codes(unsigned point, bool less) {
  return point_of(kIq1Grid, point) | (less ? 0x0404040404040404u : 0);
}

void read_iq1_s(const uint8_t* block, size_t group, StoredGroup& out) {
  const unsigned word = load<uint16_t>(block + 34 + group * 2);
  for (size_t i = 0; i < 4; ++i)
    put_eight(out, i, iq1_codes(block[2 + group * 4 + i] | (word >> (3 * i) & 7) << 8, word >> 15 != 0));
  out.small_scales[0] = odd(word >> 12 & 7);
}

void read_iq1_m(const uint8_t* block, size_t group, StoredGroup& out) {
  for (size_t i = 0; i < 4; ++i) {
    const unsigned high = block[32 + group * 2 + i / 2] >> (i % 2 * 4);
    put_eight(out, i, iq1_codes(block[group * 4 + i] | (high & 7) << 8, (high & 8) != 0));
  }
  const unsigned scales = load<uint16_t>(block + 48 + group / 2 * 2) >> (group % 2 * 6);
  out.small_scales = {odd(scales & 7), odd(scales >> 3 & 7)};
}

// The digit of base 3 that `power` = 3^n moves to the front, of each byte.
void read_digits(const uint8_t* bytes, size_t count, unsigned power, uint8_t* codes) {
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>((bytes[i] * power & 0xff) * 3 >> 8);
}

void read_tq1_0(const uint8_t* block, size_t group, StoredGroup& out) {
  constexpr unsigned kPowers[] = {1, 3, 9, 27, 81};
  uint8_t codes[32];
  if (group < 5) {
    read_digits(block, 32, kPowers[group], codes);
  } else {
    const size_t digit = 2 * (group - 5);
    read_digits(block + 32, 16, kPowers[digit], codes);
    if (group < 7) {
      read_digits(block + 32, 16, kPowers[digit + 1], codes + 16);
    } else {
      for (size_t i = 0; i < 4; ++i) read_digits(block + 48, 4, kPowers[i], codes + 16 + 4 * i);
    }
  }
  std::memcpy(out.quads.data(), codes, sizeof(codes));
}

void read_tq2_0(const uint8_t* block, size_t group, StoredGroup& out) {
  const uint8_t* run = block + group / 4 * 32;
  for (size_t j = 0; j < 8; ++j) out.quads[j] = load<uint32_t>(run + j * 4) >> (group % 4 * 2) & 0x03030303u;
}

void read_nvfp4(const uint8_t* block, size_t group, StoredGroup& out) {
  for (size_t half = 0; half < 2; ++half) {
    const size_t sixteen = 2 * group + half;
    out.small_scales[half] = block[sixteen] == 0x7f ? uint8_t{0} : static_cast<uint8_t>(block[sixteen] & 0x7f);
    for (size_t j = 0; j < 2; ++j) {
      const auto word = load<uint32_t>(block + 4 + sixteen * 8 + j * 4);
      out.quads[half * 4 + j] = word & 0x0f0f0f0fu;
      out.quads[half * 4 + 2 + j] = word >> 4 & 0x0f0f0f0fu;
    }
  }
}

float half_to_float(uint16_t bits) {
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = bits >> 10 & 0x1f;
  const auto fraction = static_cast<float>(bits & 0x3ff);
  if (exponent == 0x1f) {
    return fraction == 0 ? sign * std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  }
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024.0f, exponent - 25));
}

// Half of what F8_E4M3 without a sign means.
float half_of_e4m3(uint8_t bits) {
  return bits < 8 ? std::ldexp(static_cast<float>(bits), -10)
                  : std::ldexp(static_cast<float>(8 + bits % 8), bits / 8 - 11);
}

// Every product is whole in a float but for NaN, whatever the order.
template <DType kFormat, class Levels, int kScales>
void row_of_levels(const uint8_t* row, int64_t size, float* out) {
  constexpr DTypeInfo kInfo = info(kFormat);
  for (const float* end = out + size; out < end; row += kInfo.block_bytes) {
    const float d = kFormat == DType::kNVFP4
                        ? 1.0f
                        : half_to_float(static_cast<uint16_t>(stored_head(kFormat, row, 0))) * Levels::kFactor;
    for (int group = 0; group < kInfo.block_values / 32; ++group) {
      const StoredGroup stored = group_of_levels(kFormat, row, group);
      for (size_t i = 0; i < 32; ++i) {
        const uint8_t small = stored.small_scales.at(kScales == 2 ? i / 16 : 0);
        const float scale = kFormat == DType::kNVFP4 ? half_of_e4m3(small)
                            : kScales == 0           ? d
                                                     : d * static_cast<float>(small);
        *out++ = scale * static_cast<float>(Levels::kLevels[stored.quads.at(i / 4) >> (8 * (i % 4)) & 0x0f]);
      }
    }
  }
}

void row_of_q8_k(const uint8_t* row, int64_t size, float* out) {
  for (const float* end = out + size; out < end; row += info(DType::kQ8_K).block_bytes) {
    const auto d = load<float>(row);
    for (size_t i = 0; i < 256; ++i) *out++ = d * static_cast<float>(load<int8_t>(row + 4 + i));
  }
}

}  // namespace

uint16_t scattered_d(const uint8_t* block) {
  unsigned d = 0;
  for (size_t i = 0; i < 4; ++i) d |= static_cast<unsigned>(load<uint16_t>(block + 48 + 2 * i) >> 12) << (4 * i);
  return static_cast<uint16_t>(d);
}

StoredGroup group_of_levels(DType dtype, const uint8_t* block, int group) {
  StoredGroup out{};
  const auto index = static_cast<size_t>(group);
  switch (dtype) {
    case DType::kIQ2_XXS:
      read_iq2_xxs(block, index, out);
      return out;
    case DType::kIQ2_XS:
      read_iq2_xs(block, index, out);
      return out;
    case DType::kIQ2_S:
      read_iq2_s(block, index, out);
      return out;
    case DType::kIQ3_XXS:
      read_iq3_xxs(block, index, out);
      return out;
    case DType::kIQ3_S:
      read_iq3_s(block, index, out);
      return out;
    case DType::kIQ1_S:
      read_iq1_s(block, index, out);
      return out;
    case DType::kIQ1_M:
      read_iq1_m(block, index, out);
      return out;
    case DType::kTQ1_0:
      read_tq1_0(block, index, out);
      return out;
    case DType::kTQ2_0:
      read_tq2_0(block, index, out);
      return out;
    case DType::kNVFP4:
      read_nvfp4(block, index, out);
      return out;
    case DType::kQ8_K:
      std::memcpy(out.quads.data(), block + 4 + index * 32, 32);
      return out;
    default:
      break;
  }
  check_failed("a format of levels", __FILE__, __LINE__, name(dtype));
}

namespace {

template <DType kCoded>
void row_of_codes(const uint8_t* row, int64_t size, float* out) {
  read_stored_row(kCoded, row, size, out);
}

}  // namespace

DequantiseKernel level_dequantise_kernel(DType dtype) {
  switch (dtype) {
    case DType::kIQ2_XXS:
      return row_of_levels<DType::kIQ2_XXS, Iq2Levels, 1>;
    case DType::kIQ2_XS:
      return row_of_levels<DType::kIQ2_XS, Iq2Levels, 2>;
    case DType::kIQ2_S:
      return row_of_levels<DType::kIQ2_S, Iq2Levels, 2>;
    case DType::kIQ3_XXS:
      return row_of_levels<DType::kIQ3_XXS, Iq3XxsLevels, 1>;
    case DType::kIQ3_S:
      return row_of_levels<DType::kIQ3_S, Iq3SLevels, 1>;
    case DType::kIQ1_S:
      return row_of_levels<DType::kIQ1_S, Iq1Levels, 1>;
    case DType::kIQ1_M:
      return row_of_levels<DType::kIQ1_M, Iq1Levels, 2>;
    case DType::kTQ1_0:
      return row_of_levels<DType::kTQ1_0, TernaryLevels, 0>;
    case DType::kTQ2_0:
      return row_of_levels<DType::kTQ2_0, TernaryLevels, 0>;
    case DType::kNVFP4:
      return row_of_levels<DType::kNVFP4, Mxfp4Levels, 2>;
    case DType::kQ8_K:
      return row_of_q8_k;
    case DType::kU4_32:
      return row_of_codes<DType::kU4_32>;
    case DType::kU4_64:
      return row_of_codes<DType::kU4_64>;
    case DType::kU4_128:
      return row_of_codes<DType::kU4_128>;
    case DType::kU4_32_F32:
      return row_of_codes<DType::kU4_32_F32>;
    case DType::kI8_32:
      return row_of_codes<DType::kI8_32>;
    case DType::kI8_128:
      return row_of_codes<DType::kI8_128>;
    case DType::kI8_32_Z:
      return row_of_codes<DType::kI8_32_Z>;
    case DType::kNF4:
      return row_of_codes<DType::kNF4>;
    case DType::kFP4:
      return row_of_codes<DType::kFP4>;
    case DType::kU4_64_HZ:
      return row_of_codes<DType::kU4_64_HZ>;
    case DType::kU4_32_FZ:
      return row_of_codes<DType::kU4_32_FZ>;
    case DType::kI8_64_HZ:
      return row_of_codes<DType::kI8_64_HZ>;
    default:
      return nullptr;
  }
}

}  // namespace quire::ops::cpu
