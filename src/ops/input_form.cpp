#include "ops/input_form.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace quire::ops {
namespace {

// All of it is written so that compilers make vectors of it: rows of every product pass here.

// To the nearest whole number, ties to even. REQUIRES: |x| < 2^22.
float nearest_whole(float x) {
  constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23: its last place is 1
  return (x + kShifter) - kShifter;
}

// To the nearest number of F8_E4M3, ties to even; beyond 448 it is 448.
float nearest_float8(float x) {
  constexpr float kShifter = 0x1.8p14f;  // whose last place is the smallest step, 2^-9
  const float magnitude = std::min(std::fabs(x), 448.0f);
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((bits + 0x7ffff + (bits >> 20 & 1)) & 0xfff00000);
  const float small = (magnitude + kShifter) - kShifter;
  return std::copysign(magnitude < 0x1p-6f ? small : normal, x);
}

// To the nearest number of F16, ties to even, for numbers that it has room for.
float nearest_half(float x) {
  const float magnitude = std::fabs(x);
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  const float normal = std::bit_cast<float>((bits + 0xfff + (bits >> 13 & 1)) & 0xffffe000);
  const float small = (magnitude + 0.5f) - 0.5f;
  return std::copysign(magnitude < 0x1p-14f ? small : normal, x);
}

// Infinite or not a number where one of them is: magnitudes are compared by their bits.
float largest_magnitude(const float* x, int64_t count) {
  int32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t bits = std::bit_cast<int32_t>(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  return std::bit_cast<float>(largest);
}

void round_int8(float* x, int64_t count, float scale, float zero) {
  for (int64_t i = 0; i < count; ++i) {
    const float q = nearest_whole(std::min(std::max(x[i] / scale + zero, -128.0f), 127.0f));
    x[i] = (q - zero) * scale;
  }
}

void round_int8_range(float* x, int64_t count) {
  float low = 0;
  float high = 0;
  for (int64_t i = 0; i < count; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float scale = (high - low) / 255.0f;
  if (!(scale > 0)) return;
  round_int8(x, count, scale, std::clamp(std::nearbyint(-128.0f - low / scale), -128.0f, 127.0f));
}

void round_float8(float* x, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) x[i] = nearest_float8(x[i] / scale) * scale;
}

void round_but_outliers(float* x, int64_t count, float threshold) {
  const float least = threshold > 0 ? threshold : std::numeric_limits<float>::infinity();  // of an outlier
  float largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float magnitude = std::fabs(nearest_half(x[i]));
    largest = std::max(largest, magnitude < least ? magnitude : 0.0f);
  }
  if (!(largest > 0)) return;
  // As the library has it: the quotient's other rounding would send halves of the largest, which lie between two steps,
  // to the other one.
  const float inverse = 1.0f / largest * 127.0f;
  const float step = largest / 127.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float half = nearest_half(x[i]);
    x[i] = std::fabs(half) < least ? nearest_whole(half * inverse) * step : x[i];
  }
}

// To the nearest of 0, 1/2, 1, 3/2, 2, 3, 4 and 6, ties to the code that is even.
float nearest_float4(float x) {
  const float magnitude = std::min(std::fabs(x), 6.0f);
  const float step = magnitude < 2.0f ? 0.5f : magnitude < 4.0f ? 1.0f : 2.0f;
  return std::copysign(nearest_whole(magnitude / step) * step, x);
}

void round_float4(float* x, int64_t count, float shared) {
  const float scale = nearest_float8(shared * (largest_magnitude(x, count) / 6.0f));
  for (int64_t i = 0; i < count; ++i) x[i] = scale > 0 ? nearest_float4(x[i] * (shared / scale)) * (scale / shared) : 0;
}

// largest: the exponent of the largest number that is rounded to.
template <typename Round>
void round_mx(float* x, int64_t count, int largest, const Round& round) {
  // A half of the last place of E2M1's one bit of fraction; what it carries over is the next power of two. Floats of 8
  // bits have the same power, as the library makes it.
  const uint32_t most = std::bit_cast<uint32_t>(largest_magnitude(x, count)) + 0x200000;
  const int exponent = std::clamp(static_cast<int>(most >> 23) - 127 - largest, -126, 127);
  const float scale = std::ldexp(1.0f, exponent);
  const float inverse = std::ldexp(1.0f, -exponent);
  for (int64_t i = 0; i < count; ++i) x[i] = round(x[i] * inverse) * scale;
}

void round_together(const InputForm& form, float* x, int64_t count) {
  const auto own_scale = [&](float most) { return form.scale > 0 ? form.scale : largest_magnitude(x, count) / most; };
  switch (form.rounding) {
    case RowRounding::kNone:
      return;
    case RowRounding::kInt8:
      if (const float scale = own_scale(127.5f); scale > 0) round_int8(x, count, scale, static_cast<float>(form.zero));
      return;
    case RowRounding::kInt8Range:
      return round_int8_range(x, count);
    case RowRounding::kFloat8:
      if (const float scale = own_scale(448.0f); scale > 0) round_float8(x, count, scale);
      return;
    case RowRounding::kInt8Outliers:
      return round_but_outliers(x, count, form.threshold);
    case RowRounding::kFloat4:
      return round_float4(x, count, form.scale);
    case RowRounding::kMxFloat4:
      return round_mx(x, count, 2, nearest_float4);
    case RowRounding::kMxFloat8:
      return round_mx(x, count, 8, nearest_float8);
  }
}

}  // namespace

bool InputForm::operator==(const InputForm& other) const {
  const bool same_order =
      order == other.order || (order != nullptr && other.order != nullptr && *order == *other.order);
  return same_order && rounding == other.rounding && scale == other.scale && zero == other.zero &&
         group == other.group && threshold == other.threshold && factor == other.factor;
}

void form_input(const InputForm& form, const float* x, int64_t k, float* out) {
  for (int64_t i = 0; i < k; ++i) out[i] = x[form.order == nullptr ? i : (*form.order)[static_cast<size_t>(i)]];
  // Groups are of the columns that the weight has: no format rounds what it orders.
  const int64_t together = form.group > 0 ? form.group : k;
  for (int64_t begin = 0; begin < k && form.rounding != RowRounding::kNone; begin += together)
    round_together(form, out + begin, std::min(together, k - begin));
  if (form.factor == 1) return;
  for (int64_t i = 0; i < k; ++i) out[i] *= form.factor;
}

}  // namespace quire::ops
