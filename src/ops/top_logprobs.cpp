#include "ops/top_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace quire::ops {

void check(const TopLogprobsArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0, fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  QUIRE_CHECK_MSG(args.num_top >= 0 && args.num_top <= kMostTopLogprobs, fmt::format("num_top is {}", args.num_top));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.chosen != nullptr && args.out != nullptr && args.ranks != nullptr);
}

int32_t top_logprobs(const float* row, int64_t size, int32_t num_top, int32_t chosen, TokenLogprob* out) {
  const float largest = *std::max_element(row, row + size);
  double sum = 0;
  for (int64_t i = 0; i < size; ++i) sum += std::exp(static_cast<double>(row[i]) - largest);
  const double log_sum = largest + std::log(sum);
  const auto logprob = [&](int32_t token) { return static_cast<float>(row[token] - log_sum); };

  out[0] = chosen < 0 ? TokenLogprob{} : TokenLogprob{chosen, logprob(chosen)};
  std::vector<int32_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  const auto listed = static_cast<int32_t>(std::min<int64_t>(num_top, size));
  std::partial_sort(order.begin(), order.begin() + listed, order.end(),
                    [&](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
  for (int32_t i = 0; i < num_top; ++i) {
    out[1 + i] = i < listed ? TokenLogprob{order[static_cast<size_t>(i)], logprob(order[static_cast<size_t>(i)])}
                            : TokenLogprob{};
  }
  if (chosen < 0) return 0;
  return static_cast<int32_t>(std::count_if(row, row + size, [&](float x) { return x >= row[chosen]; }));
}

}  // namespace quire::ops
