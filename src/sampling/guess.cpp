#include "sampling/guess.h"

#include <algorithm>
#include <cmath>

#include "sampling/draw.h"
#include "sampling/row_math.h"

namespace quire::sampling {
namespace {

TokenId draw_from(const Weights& weights, double u, const SamplingScratch& scratch) {
  if (weights.row.empty()) return scratch.candidates[draw(scratch.candidates, weights.total, u)].id;
  return draw(weights.row, scratch.block_sums, weights.total, u);
}

}  // namespace

double probability_of(TokenId token, const Weights& weights, const SamplingScratch& scratch) {
  if (!weights.row.empty()) {
    const bool inside = token >= 0 && static_cast<size_t>(token) < weights.row.size();
    return inside ? static_cast<double>(weights.row[static_cast<size_t>(token)]) / weights.total : 0;
  }
  const auto found = std::ranges::find(scratch.candidates, token, &Candidate::id);
  return found == scratch.candidates.end() ? 0 : static_cast<double>(found->value) / weights.total;
}

double entropy_of(const Weights& weights, const SamplingScratch& scratch) {
  // -sum p log p of p = w / t is log t - sum w log w / t.
  double sum = 0;
  const auto add = [&sum](float weight) {
    if (weight > 0) sum += static_cast<double>(weight) * std::log(static_cast<double>(weight));
  };
  for (const float weight : weights.row) add(weight);
  if (weights.row.empty()) {
    for (const Candidate& candidate : scratch.candidates) add(candidate.value);
  }
  return std::max(std::log(weights.total) - sum / weights.total, 0.0);
}

bool is_typical(double probability, double entropy, const AcceptanceRule& rule) {
  return probability > std::min(rule.posterior_threshold, rule.posterior_alpha * std::exp(-entropy));
}

void keep_residual(std::span<const DraftProbability> drawn_from, Weights& weights, SamplingScratch& scratch) {
  const auto left_of = [&weights](float weight, float probability) {
    return static_cast<float>(
        std::max(static_cast<double>(weight) - static_cast<double>(probability) * weights.total, 0.0));
  };
  std::vector<Candidate>& kept = scratch.residual;
  kept.clear();
  if (weights.row.empty()) {
    kept.assign(scratch.candidates.begin(), scratch.candidates.end());
    double total = 0;
    for (Candidate& candidate : kept) {
      const auto found = std::ranges::find(drawn_from, candidate.id, &DraftProbability::token);
      if (found != drawn_from.end()) candidate.value = left_of(candidate.value, found->probability);
      total += static_cast<double>(candidate.value);
    }
    if (total <= 0) return;
    weights.total = total;
    scratch.candidates.swap(kept);
    return;
  }
  for (const DraftProbability& one : drawn_from) {
    if (one.token < 0 || static_cast<size_t>(one.token) >= weights.row.size()) continue;
    float& weight = weights.row[static_cast<size_t>(one.token)];
    kept.push_back({weight, one.token});
    weight = left_of(weight, one.probability);
  }
  const double total = sum_weights(weights.row, scratch.block_sums);
  if (total > 0) {
    weights.total = total;
    return;
  }
  for (const Candidate& before : kept) weights.row[static_cast<size_t>(before.id)] = before.value;
  weights.total = sum_weights(weights.row, scratch.block_sums);
}

TokenId choose_by_weights(Weights weights, double u, double accept, const Guess* guess, SamplingScratch& scratch) {
  if (guess == nullptr || guess->rule.method == AcceptanceMethod::kExact) return draw_from(weights, u, scratch);
  const double probability = probability_of(guess->token, weights, scratch);
  if (guess->rule.method == AcceptanceMethod::kTypical) {
    const bool taken = probability > 0 && is_typical(probability, entropy_of(weights, scratch), guess->rule);
    return taken ? guess->token : draw_from(weights, u, scratch);
  }
  if (guess->drawn_from.empty()) return draw_from(weights, u, scratch);
  const auto drawn = std::ranges::find(guess->drawn_from, guess->token, &DraftProbability::token);
  const double drawn_as = drawn == guess->drawn_from.end() ? 0 : static_cast<double>(drawn->probability);
  if (accept * drawn_as < probability) return guess->token;
  keep_residual(guess->drawn_from, weights, scratch);
  return draw_from(weights, u, scratch);
}

}  // namespace quire::sampling
