#include "sampling/filters.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "sampling/row_math.h"

namespace quire::sampling {
namespace {

double sum_of(const std::vector<Candidate>& candidates) {
  double sum = 0.0;
  for (const Candidate& candidate : candidates) sum += static_cast<double>(candidate.value);
  return sum;
}

}  // namespace

void keep_top_n_sigma(std::span<float> logits, float maximum, float n) {
  const ShiftedMoments moments = shifted_moments(logits, maximum);
  const double mean = moments.sum / moments.count;
  const double variance = std::max(0.0, moments.sum_of_squares / moments.count - mean * mean);
  const double reach = static_cast<double>(n) * std::sqrt(variance);
  drop_below(logits, static_cast<float>(static_cast<double>(maximum) - reach));
}

float dynamic_temperature(std::span<const float> logits, float maximum, float temperature, float range,
                          float exponent) {
  const ShiftedWeights weights = shifted_weights(logits, maximum);
  if (weights.count <= 1.0) return temperature;
  const double entropy = std::log(weights.sum) - weights.weighted_sum / weights.sum;
  const double share = std::clamp(entropy / std::log(weights.count), 0.0, 1.0);
  const double lowest = std::max(0.0, static_cast<double>(temperature) - static_cast<double>(range));
  const double highest = static_cast<double>(temperature) + static_cast<double>(range);
  return static_cast<float>(lowest + (highest - lowest) * std::pow(share, static_cast<double>(exponent)));
}

// The surprise of a token is log(total) - shifted, and the entropy is the mean surprise: so the
// distance between the two is that of shifted from its own mean.
double keep_typical(std::span<float> weights, std::span<const float> shifted, double total, float typical_p,
                    SamplingScratch& scratch) {
  const auto mean = static_cast<float>(weighted_sum(weights, shifted) / total);
  std::vector<float>& deviations = scratch.deviations;
  deviations.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    deviations[i] = weights[i] > 0.0f ? std::abs(shifted[i] - mean) : std::numeric_limits<float>::infinity();
  }

  // Floats that are not negative are ordered as their bits are: exponent and five bits of mantissa make a bucket.
  constexpr int kShift = 18;
  const auto bucket_of = [](float x) { return static_cast<size_t>(std::bit_cast<uint32_t>(x) >> kShift); };
  std::vector<double>& masses = scratch.bucket_masses;
  masses.assign(bucket_of(std::numeric_limits<float>::infinity()) + 1, 0.0);
  for (size_t i = 0; i < weights.size(); ++i) masses[bucket_of(deviations[i])] += static_cast<double>(weights[i]);
  const double wanted = static_cast<double>(typical_p) * total;
  size_t bucket = 0;
  double mass = 0.0;
  while (bucket + 2 < masses.size() && mass + masses[bucket] < wanted) mass += masses[bucket++];

  // What is nearer than the bucket of the cut stays, what is further goes; in the bucket the order decides.
  const float bucket_end = std::bit_cast<float>(static_cast<uint32_t>(bucket + 1) << kShift);
  std::vector<Candidate>& candidates = scratch.candidates;
  candidates.clear();
  for (size_t i = 0; i < weights.size(); ++i) {
    if (deviations[i] >= bucket_end) {
      weights[i] = 0.0f;
    } else if (bucket_of(deviations[i]) == bucket) {
      candidates.push_back({weights[i], static_cast<TokenId>(i)});
    }
  }
  std::sort(candidates.begin(), candidates.end(), [&](const Candidate& a, const Candidate& b) {
    const float a_deviation = deviations[static_cast<size_t>(a.id)];
    const float b_deviation = deviations[static_cast<size_t>(b.id)];
    return a_deviation < b_deviation || (a_deviation == b_deviation && more_likely(a, b));
  });
  for (const Candidate& candidate : candidates) {
    if (mass >= wanted) weights[static_cast<size_t>(candidate.id)] = 0.0f;
    mass += static_cast<double>(candidate.value);
  }
  return sum_weights(weights, scratch.block_sums);
}

double keep_typical(std::vector<Candidate>& candidates, std::span<const float> shifted, double total, float typical_p,
                    SamplingScratch& scratch) {
  QUIRE_CHECK(shifted.size() >= candidates.size());
  double weighted = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    weighted += static_cast<double>(candidates[i].value) * static_cast<double>(shifted[i]);
  }
  const auto mean = static_cast<float>(weighted / total);
  std::vector<size_t>& order = scratch.lengths;
  order.resize(candidates.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return std::abs(shifted[a] - mean) < std::abs(shifted[b] - mean); });
  const double wanted = static_cast<double>(typical_p) * total;
  double mass = 0.0;
  size_t kept = 0;
  while (kept < order.size() && (kept == 0 || mass < wanted)) {
    mass += static_cast<double>(candidates[order[kept++]].value);
  }
  order.resize(kept);
  std::sort(order.begin(), order.end());
  for (size_t i = 0; i < kept; ++i) candidates[i] = candidates[order[i]];
  candidates.resize(kept);
  return sum_of(candidates);
}

double exclude_top_choices(std::span<float> weights, double total, float threshold, SamplingScratch& scratch) {
  const auto least =
      std::max(static_cast<float>(static_cast<double>(threshold) * total), std::numeric_limits<float>::min());
  Candidate survivor{std::numeric_limits<float>::infinity(), -1};
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] < least) continue;
    const Candidate candidate{weights[i], static_cast<TokenId>(i)};
    if (survivor.id < 0 || more_likely(survivor, candidate)) survivor = candidate;
    weights[i] = 0.0f;
  }
  if (survivor.id >= 0) weights[static_cast<size_t>(survivor.id)] = survivor.value;
  return sum_weights(weights, scratch.block_sums);
}

double exclude_top_choices(std::vector<Candidate>& candidates, double total, float threshold) {
  const auto least = static_cast<float>(static_cast<double>(threshold) * total);
  size_t above = 0;
  while (above < candidates.size() && candidates[above].value >= least) ++above;
  if (above > 1) candidates.erase(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(above - 1));
  return sum_of(candidates);
}

}  // namespace quire::sampling
