#include "ops/top_logprobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"

namespace quire::ops {

void check(const TopLogprobsArgs& args) {
  QUIRE_CHECK_MSG(args.num_rows >= 0 && args.size > 0 && args.size <= std::numeric_limits<int32_t>::max(),
                  fmt::format("num_rows {}, size {}", args.num_rows, args.size));
  if (args.num_rows == 0) return;
  QUIRE_CHECK(args.in != nullptr && args.rows != nullptr && args.chosen != nullptr && args.out != nullptr);
  if (args.rows.host == nullptr) return;
  for (int64_t t = 0; t < args.num_rows; ++t) {
    const RowLogprobs& row = args.rows.host[t];
    QUIRE_CHECK_MSG(row.num_top <= kMostTopLogprobs && row.token < args.size && row.first_rank >= 0,
                    fmt::format("row {}: {} tokens, and {} of {}", t, row.num_top, row.token, args.size));
  }
}

void top_logprobs(const float* row, int64_t size, int32_t num_top, int32_t token, RankedToken* out) {
  std::fill_n(out, 1 + num_top, RankedToken{});
  const float largest = *std::max_element(row, row + size);
  double sum = 0;  // NaN where there is no distribution
  for (int64_t i = 0; i < size; ++i) sum += std::exp(static_cast<double>(row[i]) - largest);
  if (std::isnan(sum)) return;
  const auto ranked = [&](int32_t id, int32_t rank) {
    return RankedToken{id, rank, static_cast<float>(static_cast<double>(row[id]) - largest - std::log(sum))};
  };
  if (token >= 0) {
    const auto larger = std::count_if(row, row + size, [&](float x) { return x > row[token]; });
    out[0] = ranked(token, 1 + static_cast<int32_t>(larger));
  }
  std::vector<int32_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int32_t id) { return row[id] == -std::numeric_limits<float>::infinity(); });
  const auto count = std::min(static_cast<size_t>(num_top), order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    [&](int32_t a, int32_t b) { return row[a] > row[b] || (row[a] == row[b] && a < b); });
  for (size_t i = 0; i < count; ++i) {
    const bool tied = i > 0 && row[order[i]] == row[order[i - 1]];
    out[1 + i] = ranked(order[i], tied ? out[i].rank : static_cast<int32_t>(i) + 1);
  }
}

void top_logprobs(const TopLogprobsArgs& args, int64_t t) {
  const RowLogprobs& row = args.rows.host[t];
  if (row.num_top < 0) return;
  top_logprobs(args.in + t * args.size, args.size, row.num_top, row.token < 0 ? args.chosen[t] : row.token,
               args.out + row.first_rank);
}

}  // namespace quire::ops
