#include "ops/choose_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace quire::ops {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

int32_t index_of_largest(const float* row, int64_t size) {
  float largest = -kInfinity;
  int32_t index = -1;
  for (int64_t i = 0; i < size; ++i) {
    if (!(row[i] < kInfinity)) return -1;
    if (row[i] > largest) {
      largest = row[i];
      index = static_cast<int32_t>(i);
    }
  }
  return index;
}

}  // namespace

void check(const ChooseTokensArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0 && args.size <= std::numeric_limits<int32_t>::max(),
                  fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.choices != nullptr && args.tokens != nullptr);
  if (args.choices.host == nullptr) return;
  for (int64_t row = 0; row < args.num_rows; ++row) {
    const TokenChoice& choice = args.choices.host[row];
    QUIRE_CHECK_MSG(choice.inverse_temperature >= 0 && choice.top_p >= 0 && choice.u >= 0 && choice.u < 1,
                    fmt::format("row {}: inverse_temperature {}, top_p {}, u {}", row, choice.inverse_temperature,
                                choice.top_p, choice.u));
  }
}

int32_t choose_token(const float* row, int64_t size, const TokenChoice& choice) {
  const int32_t largest = index_of_largest(row, size);
  if (largest < 0 || choice.inverse_temperature == 0) return largest;
  std::vector<int32_t> kept(static_cast<size_t>(size));  // the most likely first
  std::iota(kept.begin(), kept.end(), 0);
  std::sort(kept.begin(), kept.end(),
            [&](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
  if (choice.top_k > 0 && choice.top_k < size) {
    const float last = row[kept[static_cast<size_t>(choice.top_k) - 1]];
    std::erase_if(kept, [&](int32_t i) { return row[i] < last; });
  }
  const auto share = [&](int32_t i) { return std::exp((row[i] - row[largest]) * choice.inverse_temperature); };
  const auto weight = [&](int32_t i) { return static_cast<uint64_t>(std::llrint(share(i) * kWeightOne)); };
  std::erase_if(kept, [&](int32_t i) { return share(i) < choice.min_p; });
  uint64_t total = 0;
  for (const int32_t i : kept) total += weight(i);
  if (choice.top_p < 1) {
    const auto wanted =
        static_cast<uint64_t>(std::ceil(static_cast<double>(choice.top_p) * static_cast<double>(total)));
    uint64_t mass = 0;
    size_t count = 0;
    while (count < kept.size() && (count == 0 || mass < wanted)) mass += weight(kept[count++]);
    kept.resize(count);
    total = mass;
  }
  std::sort(kept.begin(), kept.end());
  const uint64_t target = std::min(static_cast<uint64_t>(choice.u * static_cast<double>(total)), total - 1);
  uint64_t sum = 0;
  for (const int32_t i : kept) {
    sum += weight(i);
    if (sum > target) return i;
  }
  return largest;  // not reached: the sums are exact
}

}  // namespace quire::ops
