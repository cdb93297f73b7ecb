// What becomes of a list of measurements.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace quire::bench {

// 0 of nothing, in all of these.
double mean(std::span<const double> values);
// Of the population: divided by how many there are.
double standard_deviation(std::span<const double> values);
// The value that `percent` of [0, 100] of the others lie below, linear between the two nearest (numpy's default).
double percentile(std::span<const double> values, double percent);
double median(std::span<const double> values);

// Mean, median, deviation and percentiles, in the order of `percents`.
struct Summary {
  double mean = 0;
  double median = 0;
  double standard_deviation = 0;
  std::vector<std::pair<double, double>> percentiles;  // percent, value
};
Summary summarize(std::span<const double> values, std::span<const double> percents);

// Which of `values` is the median one: of an even number the lower of the middle two. REQUIRES: not empty.
size_t median_index(std::span<const double> values);

}  // namespace quire::bench
