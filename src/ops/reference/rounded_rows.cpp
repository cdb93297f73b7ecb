#include "ops/reference/rounded_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "ops/quantise.h"
#include "ops/reference/kv_values.h"
#include "tensor/stored_values.h"

namespace quire::ops::reference {
namespace {

class Writer {
 public:
  template <typename T>
  void put(T value) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(value));
    std::memcpy(bytes_.data() + at, &value, sizeof(value));
  }
  // Writes the nearest half; returns it.
  float put_half(float value) {
    const uint16_t code = float_to_code(DType::kF16, value);
    put(code);
    return half_to_float(code);
  }
  std::vector<uint8_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint8_t> bytes_;
};

float largest_magnitude(const float* x, int64_t size) {
  float most = 0;
  for (int64_t i = 0; i < size; ++i) {
    if (std::isnan(x[i])) return x[i];
    most = std::max(most, std::fabs(x[i]));
  }
  return most;
}

int code_of(float x, float d, float m, int low, int high) {
  const float q = d > 0 ? (x - m) / d : 0.0f;
  if (!std::isfinite(q)) return 0;
  return static_cast<int>(std::clamp(std::nearbyint(q), static_cast<float>(low), static_cast<float>(high)));
}

void put_q8_0(const float* x, Writer& out) {
  const float d = out.put_half(largest_magnitude(x, 32) / 127.0f);
  for (int i = 0; i < 32; ++i) out.put(static_cast<int8_t>(code_of(x[i], d, 0, -127, 127)));
}

struct Range {
  float low;
  float high;
};

Range range_of(const float* x, int64_t size) {
  Range range{x[0], x[0]};
  for (int64_t i = 0; i < size; ++i) {
    if (!std::isfinite(x[i])) return {NAN, NAN};
    range = {std::min(range.low, x[i]), std::max(range.high, x[i])};
  }
  return range;
}

void put_q4_1(const float* x, Writer& out) {
  const Range range = range_of(x, 32);
  const float d = out.put_half((range.high - range.low) / 15.0f);
  const float m = out.put_half(range.low);
  for (int i = 0; i < 16; ++i)
    out.put(static_cast<uint8_t>(code_of(x[i], d, m, 0, 15) | code_of(x[i + 16], d, m, 0, 15) << 4));
}

void put_q4_k(const float* x, Writer& out) {
  std::array<float, 8> scales{};
  std::array<float, 8> minima{};
  for (size_t g = 0; g < 8; ++g) {
    const Range range = range_of(x + g * 32, 32);
    const float low = std::isnan(range.low) ? range.low : std::min(range.low, 0.0f);
    scales[g] = (range.high - low) / 15.0f;
    minima[g] = -low;
  }
  const auto shared = [&out](const std::array<float, 8>& all) {
    float most = 0;
    for (const float one : all) most = std::isnan(one) || std::isnan(most) ? NAN : std::max(most, one);
    return out.put_half(most / 63.0f);
  };
  const float d = shared(scales);
  const float e = shared(minima);
  std::array<int, 8> s{};
  std::array<int, 8> m{};
  for (size_t g = 0; g < 8; ++g) {
    s[g] = code_of(scales[g], d, 0, 0, 63);
    m[g] = code_of(minima[g], e, 0, 0, 63);
  }
  for (size_t g = 0; g < 4; ++g) out.put(static_cast<uint8_t>(s[g] | (s[g + 4] >> 4) << 6));
  for (size_t g = 0; g < 4; ++g) out.put(static_cast<uint8_t>(m[g] | (m[g + 4] >> 4) << 6));
  for (size_t g = 4; g < 8; ++g) out.put(static_cast<uint8_t>((s[g] & 0x0f) | (m[g] & 0x0f) << 4));
  const auto code = [&](size_t g, size_t i) {
    return code_of(x[g * 32 + i], d * static_cast<float>(s[g]), -e * static_cast<float>(m[g]), 0, 15);
  };
  for (size_t g = 0; g < 8; g += 2) {
    for (size_t i = 0; i < 32; ++i) out.put(static_cast<uint8_t>(code(g, i) | code(g + 1, i) << 4));
  }
}

// Codes, then the row's float.
void put_f8_e4m3(const std::vector<float>& x, Writer& out) {
  const float scale = largest_magnitude(x.data(), static_cast<int64_t>(x.size())) / 448.0f;
  for (const float value : x) {
    out.put(static_cast<uint8_t>(float_to_code(DType::kF8E4M3, scale > 0 ? value / scale : 0.0f)));
  }
  out.put(scale);
}

}  // namespace

std::vector<uint8_t> rounded_row(DType dtype, const std::vector<float>& x) {
  Writer out;
  if (dtype == DType::kF8E4M3) {
    put_f8_e4m3(x, out);
    return out.take();
  }
  const auto k = static_cast<int64_t>(x.size());
  QUIRE_CHECK(k % info(dtype).block_values == 0);
  for (int64_t begin = 0; begin < k; begin += info(dtype).block_values) {
    switch (dtype) {
      case DType::kQ8_0:
        put_q8_0(x.data() + begin, out);
        break;
      case DType::kQ4_1:
        put_q4_1(x.data() + begin, out);
        break;
      case DType::kQ4_K:
        put_q4_k(x.data() + begin, out);
        break;
      default:
        check_failed("a format of ops/quantise.h", __FILE__, __LINE__, name(dtype));
    }
  }
  return out.take();
}

float row_value(DType dtype, const uint8_t* row, int64_t k, int64_t column) {
  if (!has_row_scales(dtype)) return stored_value(dtype, row, column);
  float scale = 0;
  std::memcpy(&scale, row + k + scale_of_column(dtype, column) * int64_t{sizeof(scale)}, sizeof(scale));
  return code_to_float(DType::kF8E4M3, row[column]) * scale;
}

}  // namespace quire::ops::reference
