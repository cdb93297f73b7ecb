#include "quantize/round_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/check.h"
#include "tensor/stored_values.h"

namespace quire::quantize {
namespace {

constexpr int kMostGroup = 256;        // values that share a scale, at most
constexpr int kLanes = 8;              // sums are kept in so many parts, which a compiler makes vectors of
constexpr float kLeastScale = 1e-30f;  // what is smaller is 0: its inverse would be NaN

// To nearest, ties to even, for magnitudes below 2^22: what is added leaves no room for a fraction.
float nearest(float x) {
  constexpr float kNoFraction = 12582912.0f;
  return (x + kNoFraction) - kNoFraction;
}

float inverse_of(float scale) {
  return std::abs(scale) < kLeastScale ? 0 : 1 / scale;
}

float sum(const std::array<float, kLanes>& lanes) {
  float total = 0;
  for (const float lane : lanes) total += lane;
  return total;
}

float as_half(float x) {
  return half_to_float(float_to_half(x));
}

void put_half(uint8_t* out, float x) {
  const uint16_t bits = float_to_half(x);
  std::memcpy(out, &bits, sizeof(bits));
}

// A group of values that share a scale, and what errors of them cost. The count is a multiple of kLanes.
struct Group {
  const float* x;
  const float* weight;
  int count;
};

// Codes are round(inverse * (x - shift)) within [low, high].
struct Grid {
  float low;
  float high;
};

// Of codes q: sums of w, w q, w q q, w x, w x q.
struct Sums {
  float w = 0, q = 0, qq = 0, x = 0, xq = 0;
};

Sums sums_of(const Group& group, float inverse, float shift, Grid grid) {
  std::array<float, kLanes> w{}, wq{}, wqq{}, wx{}, wxq{};
  for (int i = 0; i < group.count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = group.x[i + lane];
      const float weight = group.weight[i + lane];
      const float q = std::min(std::max(nearest(inverse * (x - shift)), grid.low), grid.high);
      w[lane] += weight;
      wq[lane] += weight * q;
      wqq[lane] += weight * q * q;
      wx[lane] += weight * x;
      wxq[lane] += weight * x * q;
    }
  }
  return {sum(w), sum(wq), sum(wqq), sum(wx), sum(wxq)};
}

// Weighted squared error of the nearest values scale * q + minimum.
float error_of(const Group& group, float scale, float minimum, Grid grid) {
  const float inverse = inverse_of(scale);
  std::array<float, kLanes> error{};
  for (int i = 0; i < group.count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float x = group.x[i + lane];
      const float q = std::min(std::max(nearest(inverse * (x - minimum)), grid.low), grid.high);
      const float off = x - (scale * q + minimum);
      error[lane] += group.weight[i + lane] * off * off;
    }
  }
  return sum(error);
}

void codes_of(const Group& group, float scale, float minimum, Grid grid, int offset, uint8_t* codes) {
  const float inverse = inverse_of(scale);
  for (int i = 0; i < group.count; ++i) {
    const float q = std::min(std::max(nearest(inverse * (group.x[i] - minimum)), grid.low), grid.high);
    codes[i] = static_cast<uint8_t>(static_cast<int>(q) + offset);
  }
}

// The value of the largest magnitude, with its sign.
float largest(const Group& group) {
  float most = 0;
  for (int i = 0; i < group.count; ++i) {
    if (std::abs(group.x[i]) > std::abs(most)) most = group.x[i];
  }
  return most;
}

float unrounded(float x) {
  return x;
}

// The best scale for codes of -levels to levels - 1. `stored`: what a scale becomes in the file.
template <typename Stored>
float best_scale(const Group& group, int levels, Stored stored) {
  const float most = largest(group);
  if (std::abs(most) < kLeastScale) return 0;
  const auto n = static_cast<float>(levels);
  const Grid grid{-n, n - 1};
  // The largest becomes the code that has no counterpart on the other side.
  float best = stored(most / -n);
  float least = error_of(group, best, 0, grid);
  const auto try_scale = [&](float scale) {
    scale = stored(scale);
    if (scale == 0 || !std::isfinite(scale)) return;
    const float error = error_of(group, scale, 0, grid);
    if (error >= least) return;
    least = error;
    best = scale;
  };
  for (int step = -6; step <= 6; ++step) {
    for (const float sign : {-1.0f, 1.0f}) {
      const float reach = sign < 0 ? n : n - 1;
      const float inverse = sign * (reach + 0.1f * static_cast<float>(step) * (levels > 16 ? 2.0f : 1.0f)) / most;
      const Sums sums = sums_of(group, inverse, 0, grid);
      if (sums.qq > 0) try_scale(sums.xq / sums.qq);
    }
  }
  return best;
}

struct ScaleAndMinimum {
  float scale = 0;
  float minimum = 0;
};

// The best of codes 0 to most_code; `below`: the minimum is not above 0. `stored`: what both become in the file.
template <typename Stored>
ScaleAndMinimum best_range(const Group& group, int most_code, bool below, Stored stored) {
  const auto n = static_cast<float>(most_code);
  const Grid grid{0, n};
  float low = group.x[0];
  float high = group.x[0];
  for (int i = 1; i < group.count; ++i) {
    low = std::min(low, group.x[i]);
    high = std::max(high, group.x[i]);
  }
  if (below) low = std::min(low, 0.0f);
  if (high - low < kLeastScale) return {0, stored(low)};
  ScaleAndMinimum best{stored((high - low) / n), stored(low)};
  float least = error_of(group, best.scale, best.minimum, grid);
  const auto try_range = [&](float scale, float minimum) {
    if (below && minimum > 0) minimum = 0;
    const ScaleAndMinimum range{stored(scale), stored(minimum)};
    if (!(range.scale > 0) || !std::isfinite(range.scale) || !std::isfinite(range.minimum)) return;
    const float error = error_of(group, range.scale, range.minimum, grid);
    if (error >= least) return;
    least = error;
    best = range;
  };
  for (int step = -2; step <= 8; ++step) {
    const float inverse = (n - 0.15f * static_cast<float>(step)) / (high - low);
    // The ends move in by the same, unless the lower one is zero's.
    const float cut = 0.5f * ((high - low) - n / inverse);
    for (const float shift : {low, low - cut}) {
      const Sums sums = sums_of(group, inverse, shift, grid);
      const float determinant = sums.w * sums.qq - sums.q * sums.q;
      if (determinant <= 0) continue;
      const float scale = (sums.w * sums.xq - sums.x * sums.q) / determinant;
      const float minimum = (sums.qq * sums.x - sums.q * sums.xq) / determinant;
      if (below && minimum > 0) {
        if (sums.qq > 0) try_range(sums.xq / sums.qq, 0);
      } else {
        try_range(scale, minimum);
      }
      if (cut == 0) break;
    }
  }
  return best;
}

// Halves of 16 bytes: codes 0..15 below, 16..31 above.
void put_nibbles(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 16; ++i) out[i] = static_cast<uint8_t>((codes[i] & 0x0f) | (codes[i + 16] & 0x0f) << 4);
}
void put_fifth_bits(const uint8_t* codes, uint8_t* out) {
  for (int i = 0; i < 4; ++i) out[i] = 0;
  for (int i = 0; i < 32; ++i) out[i / 8] = static_cast<uint8_t>(out[i / 8] | (codes[i] >> 4 & 1) << i % 8);
}

bool round_q8_0(const Group& group, uint8_t* out) {
  // 127 steps on each side: a search would gain next to nothing.
  const float scale = as_half(std::abs(largest(group)) / 127);
  std::array<uint8_t, 32> codes;
  codes_of(group, scale, 0, {-127, 127}, 0, codes.data());
  put_half(out, scale);
  std::copy(codes.begin(), codes.end(), out + 2);
  return std::isfinite(scale);
}

// Q4_0 and Q5_0.
bool round_symmetric(const Group& group, int bits, uint8_t* out) {
  const int levels = 1 << (bits - 1);
  const float scale = best_scale(group, levels, as_half);
  std::array<uint8_t, 32> codes;
  const auto n = static_cast<float>(levels);
  codes_of(group, scale, 0, {-n, n - 1}, levels, codes.data());
  put_half(out, scale);
  if (bits == 5) put_fifth_bits(codes.data(), out + 2);
  put_nibbles(codes.data(), out + (bits == 5 ? 6 : 2));
  return std::isfinite(scale);
}

// Q4_1 and Q5_1.
bool round_with_minimum(const Group& group, int bits, uint8_t* out) {
  const int most = (1 << bits) - 1;
  const ScaleAndMinimum range = best_range(group, most, false, as_half);
  std::array<uint8_t, 32> codes;
  codes_of(group, range.scale, range.minimum, {0, static_cast<float>(most)}, 0, codes.data());
  put_half(out, range.scale);
  put_half(out + 2, range.minimum);
  if (bits == 5) put_fifth_bits(codes.data(), out + 4);
  put_nibbles(codes.data(), out + (bits == 5 ? 8 : 4));
  return std::isfinite(range.scale) && std::isfinite(range.minimum);
}

// The 6-bit numbers of Q4_K and Q5_K: tensor/stored_values.cpp says where they lie.
void put_scales(const std::array<int, 8>& scales, const std::array<int, 8>& minima, uint8_t* out) {
  for (size_t group = 0; group < 4; ++group) {
    const int s = scales[group + 4];
    const int m = minima[group + 4];
    out[group] = static_cast<uint8_t>(scales[group] | (s >> 4) << 6);
    out[group + 4] = static_cast<uint8_t>(minima[group] | (m >> 4) << 6);
    out[group + 8] = static_cast<uint8_t>((s & 0x0f) | (m & 0x0f) << 4);
  }
}

struct Best {
  float error;
  int s;
  int m;
};

// Q4_K and Q5_K.
bool round_k_with_minima(const Group& block, int bits, uint8_t* out) {
  const int most = (1 << bits) - 1;
  const Grid grid{0, static_cast<float>(most)};
  std::array<ScaleAndMinimum, 8> ranges;
  float most_scale = 0;
  float most_minimum = 0;
  const auto group_of = [&](size_t g) { return Group{block.x + 32 * g, block.weight + 32 * g, 32}; };
  for (size_t g = 0; g < 8; ++g) {
    ranges[g] = best_range(group_of(g), most, true, unrounded);
    most_scale = std::max(most_scale, ranges[g].scale);
    most_minimum = std::max(most_minimum, -ranges[g].minimum);
  }
  const float d = as_half(most_scale / 63);
  const float e = as_half(most_minimum / 63);
  if (!std::isfinite(d) || !std::isfinite(e)) return false;
  std::array<int, 8> scales{};
  std::array<int, 8> minima{};
  std::array<uint8_t, 256> codes;
  for (size_t g = 0; g < 8; ++g) {
    const auto rounded = [](float x, float unit) {
      return unit == 0 ? 0 : std::clamp(static_cast<int>(nearest(x / unit)), 0, 63);
    };
    const int s = rounded(ranges[g].scale, d);
    const int m = rounded(-ranges[g].minimum, e);
    // Both were rounded by themselves: a neighbour may fit better.
    Best best{error_of(group_of(g), d * static_cast<float>(s), -e * static_cast<float>(m), grid), s, m};
    for (int near_s = std::max(s - 1, 0); near_s <= std::min(s + 1, 63); ++near_s) {
      for (int near_m = std::max(m - 1, 0); near_m <= std::min(m + 1, 63); ++near_m) {
        const float error =
            error_of(group_of(g), d * static_cast<float>(near_s), -e * static_cast<float>(near_m), grid);
        if (error < best.error) best = {error, near_s, near_m};
      }
    }
    scales[g] = best.s;
    minima[g] = best.m;
    codes_of(group_of(g), d * static_cast<float>(best.s), -e * static_cast<float>(best.m), grid, 0,
             codes.data() + 32 * g);
  }
  put_half(out, d);
  put_half(out + 2, e);
  put_scales(scales, minima, out + 4);
  uint8_t* high = out + 16;
  uint8_t* low = out + (bits == 5 ? 48 : 16);
  if (bits == 5) std::fill(high, high + 32, uint8_t{0});
  for (size_t i = 0; i < 256; ++i) {
    const size_t byte = i / 64 * 32 + i % 32;
    const bool is_high_half = i % 64 >= 32;
    if (!is_high_half) low[byte] = static_cast<uint8_t>(codes[i] & 0x0f);
    if (is_high_half) low[byte] = static_cast<uint8_t>(low[byte] | (codes[i] & 0x0f) << 4);
    if (bits == 5) high[i % 32] = static_cast<uint8_t>(high[i % 32] | (codes[i] >> 4) << i / 32);
  }
  return true;
}

bool round_q6_k(const Group& block, uint8_t* out) {
  constexpr Grid kGrid{-32, 31};
  std::array<float, 16> scales;
  float most = 0;
  const auto group_of = [&](size_t g) { return Group{block.x + 16 * g, block.weight + 16 * g, 16}; };
  for (size_t g = 0; g < 16; ++g) {
    scales[g] = best_scale(group_of(g), 32, unrounded);
    if (std::abs(scales[g]) > std::abs(most)) most = scales[g];
  }
  const float d = as_half(most / -128);
  if (!std::isfinite(d)) return false;
  std::array<uint8_t, 256> codes;
  for (size_t g = 0; g < 16; ++g) {
    const int s = d == 0 ? 0 : std::clamp(static_cast<int>(nearest(scales[g] / d)), -128, 127);
    Best best{error_of(group_of(g), d * static_cast<float>(s), 0, kGrid), s, 0};
    for (int near = std::max(s - 2, -128); near <= std::min(s + 2, 127); ++near) {
      const float error = error_of(group_of(g), d * static_cast<float>(near), 0, kGrid);
      if (error < best.error) best = {error, near, 0};
    }
    out[192 + g] = static_cast<uint8_t>(static_cast<int8_t>(best.s));
    codes_of(group_of(g), d * static_cast<float>(best.s), 0, kGrid, 32, codes.data() + 16 * g);
  }
  std::fill(out, out + 192, uint8_t{0});
  for (size_t i = 0; i < 256; ++i) {
    uint8_t& low = out[i / 128 * 64 + i % 64];
    uint8_t& high = out[128 + i / 128 * 32 + i % 32];
    low = static_cast<uint8_t>(low | (codes[i] & 0x0f) << i % 128 / 64 * 4);
    high = static_cast<uint8_t>(high | (codes[i] >> 4) << i % 128 / 32 * 2);
  }
  put_half(out + 208, d);
  return true;
}

bool round_block(DType format, const Group& block, uint8_t* out) {
  switch (format) {
    case DType::kQ8_0:
      return round_q8_0(block, out);
    case DType::kQ4_0:
      return round_symmetric(block, 4, out);
    case DType::kQ5_0:
      return round_symmetric(block, 5, out);
    case DType::kQ4_1:
      return round_with_minimum(block, 4, out);
    case DType::kQ5_1:
      return round_with_minimum(block, 5, out);
    case DType::kQ4_K:
      return round_k_with_minima(block, 4, out);
    case DType::kQ5_K:
      return round_k_with_minima(block, 5, out);
    case DType::kQ6_K:
      return round_q6_k(block, out);
    default:
      check_failed("a format that nothing is rounded to", __FILE__, __LINE__, std::string(name(format)));
  }
}

bool convert_row(DType format, std::span<const float> values, uint8_t* out) {
  bool fits = true;
  for (size_t i = 0; i < values.size(); ++i) {
    if (format == DType::kF32) {
      std::memcpy(out + 4 * i, &values[i], sizeof(float));
      continue;
    }
    const uint16_t bits = format == DType::kF16 ? float_to_half(values[i]) : float_to_bfloat16(values[i]);
    fits = fits && (format != DType::kF16 || std::isfinite(half_to_float(bits)));
    std::memcpy(out + 2 * i, &bits, sizeof(bits));
  }
  return fits;
}

constexpr auto kOnes = [] {
  std::array<float, kMostGroup> ones{};
  ones.fill(1.0f);
  return ones;
}();

}  // namespace

bool can_round_to(DType format) {
  switch (format) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
      return true;
    default:
      return false;
  }
}

bool round_row(DType format, std::span<const float> values, std::span<const float> importance, uint8_t* out) {
  QUIRE_CHECK(can_round_to(format) && (importance.empty() || importance.size() == values.size()));
  const DTypeInfo block = info(format);
  if (block.block_values == 1) return convert_row(format, values, out);
  const auto size = static_cast<size_t>(block.block_values);
  QUIRE_CHECK(values.size() % size == 0);
  bool fits = true;
  std::array<float, kMostGroup> weights;
  for (size_t begin = 0; begin < values.size(); begin += size) {
    const float* weight = kOnes.data();
    if (!importance.empty()) {
      // A column that no input has reached costs a little all the same: texts differ.
      float mean = 0;
      for (size_t i = 0; i < size; ++i) mean += importance[begin + i];
      mean /= static_cast<float>(size);
      const float least = mean > 0 && std::isfinite(mean) ? mean * 1e-3f : 1.0f;
      for (size_t i = 0; i < size; ++i) weights[i] = importance[begin + i] + least;
      weight = weights.data();
    }
    fits = round_block(format, {values.data() + begin, weight, block.block_values}, out) && fits;
    out += block.block_bytes;
  }
  return fits;
}

float symmetric_scale(std::span<const float> values, std::span<const float> importance, int bits) {
  QUIRE_CHECK(bits >= 2 && bits <= 8 && (importance.empty() || importance.size() == values.size()));
  // Groups may be of any size: what is missing of a whole lane is zeros that cost nothing.
  const size_t count = (values.size() + kLanes - 1) / kLanes * kLanes;
  std::vector<float> x(values.begin(), values.end());
  x.resize(count, 0.0f);
  std::vector<float> weight(count, 0.0f);
  for (size_t i = 0; i < values.size(); ++i) weight[i] = importance.empty() ? 1.0f : importance[i];
  const Group group{x.data(), weight.data(), static_cast<int>(count)};
  const float most = std::abs(largest(group));
  if (most < kLeastScale) return 0;
  const auto n = static_cast<float>(1 << (bits - 1));
  const Grid grid{-n, n - 1};
  float best = most / (n - 0.5f);
  float least = error_of(group, best, 0, grid);
  for (int step = -4; step <= 12; ++step) {
    const float inverse = (n - 1.0f + 0.15f * static_cast<float>(step)) / most;
    const Sums sums = sums_of(group, inverse, 0, grid);
    const float scale = sums.qq > 0 ? sums.xq / sums.qq : 0;
    if (!(scale > 0)) continue;
    const float error = error_of(group, scale, 0, grid);
    if (error >= least) continue;
    least = error;
    best = scale;
  }
  return best;
}

}  // namespace quire::quantize
