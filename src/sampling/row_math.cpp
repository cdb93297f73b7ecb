#include "sampling/row_math.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <limits>

#include "base/check.h"

namespace quire::sampling {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kLanes = 16;
constexpr size_t kScanBlock = 64;

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
  std::array<float, kLanes> largest;
  std::array<int32_t, kLanes> invalid{};
  largest.fill(-kInfinity);
  size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    const float* x = row.data() + i;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      largest[lane] = x[lane] > largest[lane] ? x[lane] : largest[lane];
      invalid[lane] |= x[lane] <= kLargest ? 0 : 1;  // NaN compares false
    }
  }
  for (size_t lane = 0; i < row.size(); ++i, ++lane) {
    largest[lane] = row[i] > largest[lane] ? row[i] : largest[lane];
    invalid[lane] |= row[i] <= kLargest ? 0 : 1;
  }
  RowMaximum maximum{-kInfinity, true};
  for (size_t lane = 0; lane < kLanes; ++lane) {
    maximum.value = std::max(maximum.value, largest[lane]);
    maximum.finite = maximum.finite && invalid[lane] == 0;
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

float exp_nonpositive(float x) {
  constexpr float kSmallest = -87.0f;             // e^x stays a normal number down to here
  constexpr float kRoundToInteger = 12582912.0f;  // 1.5 * 2^23: adding it leaves the integer in the low bits
  constexpr float kLog2E = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  const float clamped = x > kSmallest ? x : kSmallest;
  const float shifted = clamped * kLog2E + kRoundToInteger;
  const float n = shifted - kRoundToInteger;
  const float r = (clamped - n * kLn2High) - n * kLn2Low;  // |r| <= ln(2) / 2
  float series = 1.0f / 5040.0f;
  series = series * r + 1.0f / 720.0f;
  series = series * r + 1.0f / 120.0f;
  series = series * r + 1.0f / 24.0f;
  series = series * r + 1.0f / 6.0f;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRoundToInteger) + 127;
  const float scale = std::bit_cast<float>(exponent << 23);
  return x >= kSmallest ? series * scale : 0.0f;
}

namespace {

// Sum over a block in eight lanes of double, joined in a fixed order.
class BlockSum {
 public:
  void add(const float* values) {
    for (size_t lane = 0; lane < kWidth; ++lane) sums_[lane] += static_cast<double>(values[lane]);
  }
  void add_one(float value) { sums_[0] += static_cast<double>(value); }
  double total() const {
    return ((sums_[0] + sums_[4]) + (sums_[1] + sums_[5])) + ((sums_[2] + sums_[6]) + (sums_[3] + sums_[7]));
  }
  static constexpr size_t kWidth = 8;

 private:
  std::array<double, kWidth> sums_{};
};

double sum_of(std::span<const float> values) {
  BlockSum sum;
  size_t i = 0;
  for (; i + BlockSum::kWidth <= values.size(); i += BlockSum::kWidth) sum.add(values.data() + i);
  for (; i < values.size(); ++i) sum.add_one(values[i]);
  return sum.total();
}

}  // namespace

double sum_exp(std::span<const float> row, float maximum) {
  double total = 0.0;
  std::array<float, kWeightBlock> weights;
  for (size_t begin = 0; begin < row.size(); begin += kWeightBlock) {
    const std::span<const float> block = row.subspan(begin, std::min(kWeightBlock, row.size() - begin));
    for (size_t i = 0; i < block.size(); ++i) weights[i] = exp_nonpositive(block[i] - maximum);
    total += sum_of({weights.data(), block.size()});
  }
  return total;
}

double replace_by_weights(std::span<float> row, float maximum, float inverse_temperature, float least,
                          std::vector<double>& block_sums) {
  block_sums.clear();
  double total = 0.0;
  for (size_t begin = 0; begin < row.size(); begin += kWeightBlock) {
    const std::span<float> block = row.subspan(begin, std::min(kWeightBlock, row.size() - begin));
    for (float& x : block) {
      const float weight = exp_nonpositive((x - maximum) * inverse_temperature);
      x = weight >= least ? weight : 0.0f;
    }
    block_sums.push_back(sum_of(block));
    total += block_sums.back();
  }
  return total;
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

void select_at_least(std::span<const float> row, float least, std::vector<Candidate>& selected) {
  selected.clear();
  for_each_where(
      row, [least](float x) { return x >= least; },
      [&](size_t place) {
        selected.push_back({row[place], static_cast<TokenId>(place)});
      });
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
