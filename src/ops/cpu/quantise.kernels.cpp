// Rows of floats to the formats that weights are rounded to while they are loaded, in the layouts of tensor/dtype.h.
// NaN, or an infinite number, makes its group (of F8_E4M3 its row) NaN.
#include "ops/cpu/isa_kernels.h"
#include "ops/cpu/kv_formats.h"

namespace quire::ops::cpu::QUIRE_ISA {
namespace {

constexpr int kGroup = 32;  // values that share a scale
constexpr int kGroups = kLanes;

// To the nearest whole number, ties to even, and into [low, high]; low where x is NaN.
QUIRE_INLINE F8 whole(F8 x, float low, float high) {
  const F8 shifter = broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds
  return min(max(x, broadcast(low)), broadcast(high)) + shifter - shifter;
}

QUIRE_INLINE F8 inverse_or_zero(F8 d) {
  return d > 0.0f ? 1.0f / d : zero();
}

// Rounded to halves, and the halves themselves.
QUIRE_INLINE F8 as_halves(F8 x, uint16_t (&halves)[kLanes]) {
  store_half(x, halves);
  return load_half(reinterpret_cast<const uint8_t*>(halves));
}

QUIRE_INLINE void put_half(uint8_t* to, uint16_t half) {
  std::memcpy(to, &half, sizeof(half));
}

QUIRE_INLINE float bits_to_float(int32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// The largest magnitude, by its bits: NaN is larger than all.
QUIRE_INLINE float largest_magnitude(const float* x, int64_t size) {
  I8 bits{};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) bits = larger(bits, (I8)load(x + i) & 0x7fffffff);
  bits = larger(bits, swap_fours(bits));
  bits = larger(bits, swap_twos(bits));
  bits = larger(bits, swap_ones(bits));
  int32_t most = bits[0];
  for (; i < size; ++i) {
    int32_t one;
    std::memcpy(&one, x + i, sizeof(one));
    one &= 0x7fffffff;
    most = one > most ? one : most;
  }
  return bits_to_float(most);
}

// A half for the scale of codes up to 127: the nearest, or the next above where that would cut off more than half a
// step of the largest value, as it may among the denormals.
QUIRE_INLINE uint16_t scale_of_bytes(float most) {
  uint16_t halves[kLanes];
  const float d = as_halves(broadcast(most / 127.0f), halves)[0];
  return d * 127.5f < most && halves[0] < 0x7bff ? static_cast<uint16_t>(halves[0] + 1) : halves[0];
}

void quantise_q8_0(const float* x, int64_t k, uint8_t* row) {
  for (int64_t begin = 0; begin < k; begin += kGroup, row += 2 + kGroup) {
    const uint16_t half = scale_of_bytes(largest_magnitude(x + begin, kGroup));
    put_half(row, half);
    const F8 inverse = inverse_or_zero(broadcast(half_to_float(half)));
    for (int i = 0; i < kGroup; i += kLanes) {
      const I8 q = __builtin_convertvector(whole(load(x + begin + i) * inverse, -127.0f, 127.0f), I8);
      store_narrowed(q, reinterpret_cast<int8_t*>(row + 2 + i));
    }
  }
}

// Value i of eight groups beside each other: what follows treats them all at once.
struct Values {
  F8 at[kGroup];
};

QUIRE_INLINE void load_groups(const float* x, int groups, Values& out) {
  for (int g = 0; g < kGroups; ++g) {
    for (int i = 0; i < kGroup; ++i) out.at[i][g] = g < groups ? x[g * kGroup + i] : 0.0f;
  }
}

// value = d * q + m
struct Line {
  F8 d;
  F8 m;
};

// The scale and minimum of 4-bit codes with the least squared error among those that these tries lead to: the range of
// the codes is the values' own or a part of it, cut at either end, which moves large values to the last code and makes
// the step finer; for the codes of each try the best scale and minimum follow from the sums of a line's least squares
// fit. Of normal values it leaves 0.805 of the squared error that the values' own range gives (an exhaustive search:
// 0.775). kNoneAbove: the minimum may not be above 0.
template <bool kNoneAbove>
QUIRE_INLINE Line best_line(const Values& x) {
  F8 low = x.at[0];
  F8 high = x.at[0];
  F8 poison = zero();  // NaN where one of the values is
  for (int i = 0; i < kGroup; ++i) {
    low = min(low, x.at[i]);
    high = max(high, x.at[i]);
    poison += x.at[i] * 0.0f;
  }
  if (kNoneAbove) low = min(low, zero());
  // Values from the middle of their range: the sums of their squares then lose no digits to where they lie.
  const F8 middle = low * 0.5f + high * 0.5f;
  Values moved;
  F8 sum_x = zero();
  F8 sum_xx = zero();
  for (int i = 0; i < kGroup; ++i) {
    moved.at[i] = x.at[i] - middle;
    sum_x += moved.at[i];
    sum_xx = fma(moved.at[i], moved.at[i], sum_xx);
  }
  const F8 step = (high - low) / 15.0f;
  Line best{zero(), sum_x / kGroup + middle};
  if (kNoneAbove) best.m = min(best.m, zero());
  F8 least = broadcast(3.0e38f);
  constexpr float kCuts[3] = {-0.15f, 0.45f, 1.05f};  // of the range, in steps
  for (const float below : kCuts) {
    for (const float above : kCuts) {
      const F8 inverse = inverse_or_zero(step * ((15.0f - below - above) / 15.0f));
      const F8 shift = (middle - low - step * below) * inverse;
      F8 sum_q = zero();
      F8 sum_qq = zero();
      F8 sum_qx = zero();
      for (int i = 0; i < kGroup; ++i) {
        const F8 q = whole(fma(moved.at[i], inverse, shift), 0.0f, 15.0f);
        sum_q += q;
        sum_qq = fma(q, q, sum_qq);
        sum_qx = fma(q, moved.at[i], sum_qx);
      }
      const F8 spread = sum_qq * kGroup - sum_q * sum_q;
      F8 d = spread > 0.0f ? (sum_qx * kGroup - sum_q * sum_x) / spread : zero();
      F8 m = (sum_x - d * sum_q) / kGroup;
      F8 error = sum_xx - d * sum_qx - m * sum_x;
      if (kNoneAbove) {
        // Through 0 where the best line begins above it.
        const F8 whole_qx = sum_qx + middle * sum_q;
        const F8 through = sum_qq > 0.0f ? whole_qx / sum_qq : zero();
        const F8 whole_xx = sum_xx + middle * (sum_x * 2.0f + middle * kGroup);
        const I8 is_above = m + middle > 0.0f;
        d = is_above ? through : d;
        m = is_above ? -middle : m;
        error = is_above ? whole_xx - through * whole_qx : error;
      }
      const I8 better = error < least;
      least = better ? error : least;
      best.d = better ? d : best.d;
      best.m = better ? m + middle : best.m;
    }
  }
  return {best.d + poison, best.m + poison};
}

// The codes of all groups for a line, and the sum of each group's.
QUIRE_INLINE F8 codes_of(const Values& x, F8 d, F8 m, uint8_t (&codes)[kGroup][kGroups]) {
  const F8 inverse = inverse_or_zero(d);
  F8 sum = zero();
  for (int i = 0; i < kGroup; ++i) {
    const F8 q = whole((x.at[i] - m) * inverse, 0.0f, 15.0f);
    sum += q;
    store_narrowed(__builtin_convertvector(q, I8), codes[i]);
  }
  return sum;
}

QUIRE_INLINE F8 sum_of(const Values& x) {
  F8 sum = zero();
  for (int i = 0; i < kGroup; ++i) sum += x.at[i];
  return sum;
}

void quantise_q4_1(const float* x, int64_t k, uint8_t* row) {
  for (int64_t begin = 0; begin < k; begin += kGroups * kGroup) {
    const int64_t left = (k - begin) / kGroup;
    const int groups = left < kGroups ? static_cast<int>(left) : kGroups;
    Values values;
    load_groups(x + begin, groups, values);
    const Line line = best_line<false>(values);
    uint16_t d_halves[kLanes];
    uint16_t m_halves[kLanes];
    uint8_t codes[kGroup][kGroups];
    const F8 d = as_halves(line.d, d_halves);
    // The scale is a half now: the best minimum is another.
    const F8 sum_q = codes_of(values, d, line.m, codes);
    const F8 m = as_halves((sum_of(values) - d * sum_q) / kGroup, m_halves);
    codes_of(values, d, m, codes);
    for (int g = 0; g < groups; ++g, row += 20) {
      put_half(row, d_halves[g]);
      put_half(row + 2, m_halves[g]);
      for (int i = 0; i < 16; ++i) row[4 + i] = static_cast<uint8_t>(codes[i][g] | codes[i + 16][g] << 4);
    }
  }
}

// s and m of six bits each as Q4_K has them: see tensor/stored_values.cpp.
QUIRE_INLINE void pack_six_bits(const uint8_t* s, const uint8_t* m, uint8_t* out) {
  for (int g = 0; g < 4; ++g) {
    out[g] = static_cast<uint8_t>(s[g] | (s[g + 4] >> 4) << 6);
    out[4 + g] = static_cast<uint8_t>(m[g] | (m[g + 4] >> 4) << 6);
    out[8 + g] = static_cast<uint8_t>((s[g + 4] & 0x0f) | (m[g + 4] & 0x0f) << 4);
  }
}

// The half that 63 of make the largest lane, in all lanes; NaN where one of the lanes is.
QUIRE_INLINE F8 shared_scale(F8 x, uint16_t (&halves)[kLanes]) {
  return as_halves(broadcast(largest(x) / 63.0f + sum(x * 0.0f)), halves);
}

void quantise_q4_k(const float* x, int64_t k, uint8_t* row) {
  static_assert(kGroups == 8, "a block of Q4_K is what one vector of groups holds");
  for (int64_t begin = 0; begin < k; begin += 256, row += 144) {
    Values values;
    load_groups(x + begin, kGroups, values);
    const Line line = best_line<true>(values);
    uint16_t d_halves[kLanes];
    uint16_t e_halves[kLanes];
    const F8 d = shared_scale(line.d, d_halves);
    const F8 e = shared_scale(-line.m, e_halves);
    const F8 inverse = inverse_or_zero(e);
    const F8 s = whole(line.d * inverse_or_zero(d), 0.0f, 63.0f);
    uint8_t codes[kGroup][kGroups];
    // As the scales are rounded now, other minima are the best.
    const F8 sum_q = codes_of(values, d * s, -e * whole(-line.m * inverse, 0.0f, 63.0f), codes);
    const F8 m = whole((d * s * sum_q - sum_of(values)) / kGroup * inverse, 0.0f, 63.0f);
    codes_of(values, d * s, -e * m, codes);
    put_half(row, d_halves[0]);
    put_half(row + 2, e_halves[0]);
    uint8_t small[2][kGroups];
    store_narrowed(__builtin_convertvector(s, I8), small[0]);
    store_narrowed(__builtin_convertvector(m, I8), small[1]);
    pack_six_bits(small[0], small[1], row + 4);
    for (int pair = 0; pair < 4; ++pair) {
      for (int i = 0; i < kGroup; ++i)
        row[16 + pair * kGroup + i] = static_cast<uint8_t>(codes[i][2 * pair] | codes[i][2 * pair + 1] << 4);
    }
  }
}

// Codes, then the float that they are multiplied by.
void quantise_f8_e4m3(const float* x, int64_t k, uint8_t* row) {
  const float scale = largest_magnitude(x, k) / 448.0f;
  const F8 divisor = broadcast(scale > 0.0f ? scale : 1.0f);
  int64_t i = 0;
  for (; i + kLanes <= k; i += kLanes) store_f8e4m3(load(x + i) / divisor, row + i);
  if (i < k) {
    float last[kLanes] = {};
    uint8_t codes[kLanes];
    for (int64_t j = i; j < k; ++j) last[j - i] = x[j];
    store_f8e4m3(load(last) / divisor, codes);
    for (int64_t j = i; j < k; ++j) row[j] = codes[j - i];
  }
  std::memcpy(row + k, &scale, sizeof(scale));
}

}  // namespace

void quantise(DType dtype, const float* x, int64_t k, uint8_t* row) {
  switch (dtype) {
    case DType::kQ8_0:
      return quantise_q8_0(x, k, row);
    case DType::kQ4_1:
      return quantise_q4_1(x, k, row);
    case DType::kQ4_K:
      return quantise_q4_k(x, k, row);
    case DType::kF8E4M3:
      return quantise_f8_e4m3(x, k, row);
    default:
      break;
  }
}

}  // namespace quire::ops::cpu::QUIRE_ISA
