#include "sampling/row_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "base/check.h"

namespace quire::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kScanBlock = 64;

constexpr size_t kWidth = 4;
using Floats = float __attribute__((vector_size(kWidth * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(kWidth * sizeof(int32_t))));
using Unsigneds = uint32_t __attribute__((vector_size(kWidth * sizeof(uint32_t))));
using HalfFloats = float __attribute__((vector_size(kWidth / 2 * sizeof(float))));
using Doubles = double __attribute__((vector_size(kWidth / 2 * sizeof(double))));

Floats all(float x) {
  return Floats{x, x, x, x};
}

Floats load(const float* from) {
  Floats x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

void store(Floats x, float* to) {
  std::memcpy(to, &x, sizeof(x));
}

// The first kWidth elements; where there are fewer, -inf instead.
Floats load_padded(std::span<const float> from) {
  Floats x = all(-kInfinity);
  std::memcpy(&x, from.data(), std::min(kWidth, from.size()) * sizeof(float));
  return x;
}

// Does any of the kScanBlock elements from `block` satisfy `test`? Without a branch an element.
template <typename Test>
bool any_in_block(const float* block, Test test) {
  int32_t found = 0;
  for (size_t i = 0; i < kScanBlock; ++i) found |= test(block[i]) ? 1 : 0;
  return found != 0;
}

// visit(place) for the places of the elements that satisfy `test`, in rising order, skipping blocks without one. `test`
// may grow stricter while visiting.
template <typename Test, typename Visit>
void for_each_where(std::span<const float> row, Test test, Visit visit) {
  size_t i = 0;
  for (; i + kScanBlock <= row.size(); i += kScanBlock) {
    if (!any_in_block(row.data() + i, test)) continue;
    for (size_t j = i; j < i + kScanBlock; ++j) {
      if (test(row[j])) visit(j);
    }
  }
  for (; i < row.size(); ++i) {
    if (test(row[i])) visit(i);
  }
}

}  // namespace

RowMaximum row_maximum(std::span<const float> row) {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr size_t kStreams = 4;  // independent chains of comparisons
  constexpr size_t kStep = kStreams * kWidth;
  std::array<Floats, kStreams> largest;
  std::array<Ints, kStreams> valid;
  largest.fill(all(-kInfinity));
  valid.fill(Ints{-1, -1, -1, -1});
  const auto take = [&](size_t stream, Floats x) {
    largest[stream] = x > largest[stream] ? x : largest[stream];
    valid[stream] &= x <= kLargest;  // false for NaN
  };
  size_t i = 0;
  for (; i + kStep <= row.size(); i += kStep) {
#pragma GCC unroll 4
    for (size_t stream = 0; stream < kStreams; ++stream) {
      take(stream, load(row.data() + i + stream * kWidth));
    }
  }
  for (; i < row.size(); i += kWidth) take(0, load_padded(row.subspan(i)));

  RowMaximum maximum{-kInfinity, true};
  for (size_t stream = 0; stream < kStreams; ++stream) {
    for (size_t lane = 0; lane < kWidth; ++lane) {
      maximum.value = std::max(maximum.value, largest[stream][lane]);
      maximum.finite = maximum.finite && valid[stream][lane] != 0;
    }
  }
  maximum.finite = maximum.finite && maximum.value > -kInfinity;
  return maximum;
}

Status not_finite() {
  return internal_error(
      "The model's output for this sequence is not a distribution: a logit is NaN or infinite, or "
      "no token is left to choose from.");
}

size_t first_equal(std::span<const float> row, float value) {
  size_t i = 0;
  while (i + kScanBlock <= row.size() && !any_in_block(row.data() + i, [value](float x) { return x == value; })) {
    i += kScanBlock;
  }
  while (i < row.size() && row[i] != value) ++i;
  QUIRE_CHECK(i < row.size());
  return i;
}

size_t count_greater(std::span<const float> row, float value) {
  size_t count = 0;
  size_t i = 0;
  for (; i + kScanBlock <= row.size(); i += kScanBlock) {
    int32_t block_count = 0;
    for (size_t j = 0; j < kScanBlock; ++j) block_count += row[i + j] > value ? 1 : 0;
    count += static_cast<size_t>(block_count);
  }
  for (; i < row.size(); ++i) count += row[i] > value ? 1 : 0;
  return count;
}

namespace {

// For float and uint32_t as for vectors of them: the same operations, so the same bits. What is computed below
// kSmallest is meaningless and replaced at the end.
template <typename F, typename U>
F exp_of(F x) {
  constexpr float kSmallest = -87.0f;             // e^x stays a normal number down to here
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: leaves the integer in the low bits
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  const F zero{};
  const F shifted = x * kLog2E + kRoundToInteger;
  const F n = shifted - kRoundToInteger;
  const F r = (x - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  // Degree 6: (e^r - 1 - r) / r^2 interpolated at the Chebyshev nodes of that interval, to 1e-8.
  F series = zero + 1.39261759e-3f;
  series = series * r + 8.36317334e-3f;
  series = series * r + 4.16665561e-2f;
  series = series * r + 1.66665778e-1f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const U exponent = std::bit_cast<U>(shifted) - std::bit_cast<uint32_t>(kRoundToInteger) + 127u;
  const F value = series * std::bit_cast<F>(exponent << 23);
  return x >= kSmallest ? value : zero;
}

Doubles low_half(Floats x) {
  return __builtin_convertvector(__builtin_shufflevector(x, x, 0, 1), Doubles);
}

// By way of the low half, for which compilers have one instruction.
Doubles high_half(Floats x) {
  return low_half(__builtin_shufflevector(x, x, 2, 3, 2, 3));
}

// A sum in four lanes of double, joined in a fixed order.
class LaneSum {
 public:
  void add(Floats x) {
    low_ += low_half(x);
    high_ += high_half(x);
  }
  void add_squares(Floats x) {
    low_ += low_half(x) * low_half(x);
    high_ += high_half(x) * high_half(x);
  }
  double total() const { return (low_[0] + high_[0]) + (low_[1] + high_[1]); }

 private:
  Doubles low_{};
  Doubles high_{};
};

// Replaces each element x of a block by change(x), kWidth at a time, and returns their sum. What pads the last vector
// is -inf and must change to 0.
template <typename Change>
double transform_block(std::span<float> block, Change change) {
  LaneSum sum;
  size_t i = 0;
  for (; i + kWidth <= block.size(); i += kWidth) {
    const Floats weights = change(load(block.data() + i));
    store(weights, block.data() + i);
    sum.add(weights);
  }
  if (i < block.size()) {
    const Floats weights = change(load_padded(block.subspan(i)));
    std::memcpy(block.data() + i, &weights, (block.size() - i) * sizeof(float));
    sum.add(weights);
  }
  return sum.total();
}

template <typename Change>
double transform_blocks(std::span<float> row, std::vector<double>& block_sums, Change change) {
  block_sums.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < row.size(); begin += kWeightBlock) {
    block_sums.push_back(transform_block(row.subspan(begin, std::min(kWeightBlock, row.size() - begin)), change));
    total += block_sums.back();
  }
  return total;
}

}  // namespace

float exp_nonpositive(float x) {
  return exp_of<float, uint32_t>(x);
}

double sum_exp(std::span<const float> row, float maximum) {
  std::array<LaneSum, 2> sums;
  size_t i = 0;
  for (; i + 2 * kWidth <= row.size(); i += 2 * kWidth) {
    sums[0].add(exp_of<Floats, Unsigneds>(load(row.data() + i) - maximum));
    sums[1].add(exp_of<Floats, Unsigneds>(load(row.data() + i + kWidth) - maximum));
  }
  for (; i < row.size(); i += kWidth) {
    sums[0].add(exp_of<Floats, Unsigneds>(load_padded(row.subspan(i)) - maximum));
  }
  return sums[0].total() + sums[1].total();
}

double replace_by_weights(std::span<float> row, float maximum, float inverse_temperature, float least,
                          std::vector<double>& block_sums) {
  const auto weight_of = [=](Floats x) { return exp_of<Floats, Unsigneds>((x - maximum) * inverse_temperature); };
  if (least <= 0.0f) return transform_blocks(row, block_sums, weight_of);
  return transform_blocks(row, block_sums, [=](Floats x) {
    const Floats weight = weight_of(x);
    return weight >= least ? weight : Floats{};
  });
}

double sum_weights(std::span<float> weights, std::vector<double>& block_sums) {
  return drop_weights_below(weights, 0.0f, block_sums);
}

double drop_weights_below(std::span<float> weights, float least, std::vector<double>& block_sums) {
  return transform_blocks(weights, block_sums, [=](Floats x) { return x >= std::max(least, 0.0f) ? x : Floats{}; });
}

ShiftedMoments shifted_moments(std::span<const float> row, float maximum) {
  LaneSum counts;
  LaneSum sums;
  LaneSum squares;
  for (size_t i = 0; i < row.size(); i += kWidth) {
    const Floats x = i + kWidth <= row.size() ? load(row.data() + i) : load_padded(row.subspan(i));
    const Floats shifted = x > -kInfinity ? x - maximum : Floats{};
    counts.add(x > -kInfinity ? all(1.0f) : Floats{});
    sums.add(shifted);
    squares.add_squares(shifted);
  }
  return {counts.total(), sums.total(), squares.total()};
}

ShiftedWeights shifted_weights(std::span<const float> row, float maximum) {
  constexpr float kSmallest = -88.0f;  // of weight 0, and finite
  LaneSum counts;
  LaneSum sums;
  LaneSum weighted;
  for (size_t i = 0; i < row.size(); i += kWidth) {
    const Floats x = i + kWidth <= row.size() ? load(row.data() + i) : load_padded(row.subspan(i));
    const Floats difference = x - maximum;
    const Floats shifted = difference > kSmallest ? difference : all(kSmallest);
    const Floats weight = exp_of<Floats, Unsigneds>(shifted);
    counts.add(x > -kInfinity ? all(1.0f) : Floats{});
    sums.add(weight);
    weighted.add(weight * shifted);
  }
  return {counts.total(), sums.total(), weighted.total()};
}

double weighted_sum(std::span<const float> weights, std::span<const float> values) {
  QUIRE_CHECK(weights.size() == values.size());
  LaneSum sum;
  size_t i = 0;
  for (; i + kWidth <= weights.size(); i += kWidth) {
    const Floats weight = load(weights.data() + i);
    sum.add(weight > 0.0f ? weight * load(values.data() + i) : Floats{});
  }
  double total = sum.total();
  for (; i < weights.size(); ++i) {
    if (weights[i] > 0.0f) total += static_cast<double>(weights[i]) * static_cast<double>(values[i]);
  }
  return total;
}

void drop_below(std::span<float> row, float least) {
  for (float& x : row) x = x >= least ? x : -kInfinity;
}

void select_largest(std::span<const float> row, size_t count, std::vector<Candidate>& selected) {
  selected.clear();
  if (count == 0) return;
  // Twice as many as asked for are gathered before the smaller half goes and the bar rises to the smallest that stays.
  // An equal one that comes later loses to it by its place.
  const size_t capacity = std::min(2 * count + kScanBlock, row.size());
  float bar = -kInfinity;
  const auto keep_largest = [&] {
    const auto last_kept = selected.begin() + static_cast<std::ptrdiff_t>(count - 1);
    std::nth_element(selected.begin(), last_kept, selected.end(), more_likely);
    bar = last_kept->value;
    selected.resize(count);
  };
  for_each_where(
      row, [&bar](float x) { return x > bar; },
      [&](size_t place) {
        selected.push_back({row[place], static_cast<TokenId>(place)});
        if (selected.size() > count && selected.size() >= capacity) keep_largest();
      });
  if (selected.size() > count) keep_largest();
  std::sort(selected.begin(), selected.end(), more_likely);
}

Candidate nucleus_cut(std::span<const float> weights, double total, float top_p, SamplingScratch& scratch) {
  // Positive floats are ordered as their bits are: exponent and five bits of mantissa make a bucket, and a bucket's
  // tokens are all more likely than those of the buckets below it.
  constexpr int kShift = 18;
  const auto bucket_of = [](float weight) { return static_cast<size_t>(std::bit_cast<uint32_t>(weight) >> kShift); };
  const double wanted = static_cast<double>(top_p) * total;
  // Tokens lighter than an even share of what may be left out are not needed: they weigh less than that together.
  const double even_share = (1.0 - static_cast<double>(top_p)) * total / static_cast<double>(weights.size());
  const float least = std::max(static_cast<float>(even_share * 0.999), std::numeric_limits<float>::min());
  std::vector<double>& masses = scratch.bucket_masses;
  masses.assign(bucket_of(1.0f) + 1, 0.0);
  for_each_where(
      weights, [least](float x) { return x >= least; },
      [&](size_t place) { masses[bucket_of(weights[place])] += static_cast<double>(weights[place]); });

  size_t bucket = masses.size() - 1;
  double mass = 0.0;
  const size_t lowest = bucket_of(least);
  while (bucket > lowest && mass + masses[bucket] < wanted) mass += masses[bucket--];

  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  const float bucket_begin = std::max(least, std::bit_cast<float>(static_cast<uint32_t>(bucket) << kShift));
  const float bucket_end = std::bit_cast<float>(static_cast<uint32_t>(bucket + 1) << kShift);
  for_each_where(
      weights, [=](float x) { return (x >= bucket_begin) & (x < bucket_end); },
      [&](size_t place) {
        candidates.push_back({weights[place], static_cast<TokenId>(place)});
      });
  std::sort(candidates.begin(), candidates.end(), more_likely);
  for (const Candidate& candidate : candidates) {
    mass += static_cast<double>(candidate.value);
    if (mass >= wanted) return candidate;
  }
  // Rounding: the sums by bucket reached what the sum in order does not. Then all of them belong to the nucleus.
  return candidates.empty() ? Candidate{least, std::numeric_limits<TokenId>::max()} : candidates.back();
}

double drop_less_likely(std::span<float> weights, const Candidate& cut, std::vector<double>& block_sums) {
  const float least = cut.value;
  for_each_where(
      std::span<const float>(weights).subspan(std::min(static_cast<size_t>(cut.id) + 1, weights.size())),
      [least](float x) { return x == least; },
      [&](size_t place) { weights[static_cast<size_t>(cut.id) + 1 + place] = 0.0f; });
  return transform_blocks(weights, block_sums, [=](Floats x) { return x >= least ? x : Floats{}; });
}

bool gather_at_least(std::span<const float> row, float least, size_t most, std::vector<Candidate>& candidates) {
  candidates.clear();
  size_t i = 0;
  for (; i + kScanBlock <= row.size(); i += kScanBlock) {
    if (!any_in_block(row.data() + i, [least](float x) { return x >= least; })) continue;
    for (size_t j = i; j < i + kScanBlock; ++j) {
      if (row[j] >= least) candidates.push_back({row[j], static_cast<TokenId>(j)});
    }
    if (candidates.size() > most) return false;
  }
  for (; i < row.size(); ++i) {
    if (row[i] >= least) candidates.push_back({row[i], static_cast<TokenId>(i)});
  }
  return candidates.size() <= most;
}

void keep_largest(std::span<float> row, size_t count, std::vector<Candidate>& candidates) {
  if (count >= row.size()) return;
  QUIRE_CHECK(count > 0);
  candidates.clear();
  for (size_t i = 0; i < row.size(); ++i) candidates.push_back({row[i], static_cast<TokenId>(i)});
  const auto last_kept = candidates.begin() + static_cast<std::ptrdiff_t>(count - 1);
  std::nth_element(candidates.begin(), last_kept, candidates.end(), more_likely);
  const auto end_of_equals = static_cast<size_t>(last_kept->id);
  const float least = last_kept->value;
  for (size_t i = 0; i < row.size(); ++i) {
    if (row[i] < least || (row[i] == least && i > end_of_equals)) row[i] = -kInfinity;
  }
}

void append_equal_after(std::span<const float> row, float value, TokenId after, std::vector<Candidate>& candidates) {
  const size_t begin = static_cast<size_t>(after) + 1;
  for_each_where(
      row.subspan(begin), [value](float x) { return x == value; },
      [&](size_t place) {
        candidates.push_back({value, static_cast<TokenId>(begin + place)});
      });
}

}  // namespace quire::sampling
