#include "bench/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

#include "base/check.h"

namespace quire::bench {

double mean(std::span<const double> values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double standard_deviation(std::span<const double> values) {
  if (values.empty()) return 0;
  const double middle = mean(values);
  double squares = 0;
  for (const double value : values) squares += (value - middle) * (value - middle);
  return std::sqrt(squares / static_cast<double>(values.size()));
}

namespace {

double percentile_of_sorted(std::span<const double> sorted, double percent) {
  if (sorted.empty()) return 0;
  const double place = std::clamp(percent, 0.0, 100.0) / 100 * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - static_cast<double>(below));
}

std::vector<double> sorted_copy(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

double percentile(std::span<const double> values, double percent) {
  return percentile_of_sorted(sorted_copy(values), percent);
}

double median(std::span<const double> values) {
  return percentile(values, 50);
}

Summary summarize(std::span<const double> values, std::span<const double> percents) {
  const std::vector<double> sorted = sorted_copy(values);
  Summary summary{.mean = mean(values),
                  .median = percentile_of_sorted(sorted, 50),
                  .standard_deviation = standard_deviation(values)};
  for (const double percent : percents) {
    summary.percentiles.emplace_back(percent, percentile_of_sorted(sorted, percent));
  }
  return summary;
}

size_t median_index(std::span<const double> values) {
  QUIRE_CHECK(!values.empty());
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  return order[(order.size() - 1) / 2];
}

}  // namespace quire::bench
