#include "sampling/mirostat.h"

#include <algorithm>
#include <cmath>

#include "sampling/draw.h"
#include "sampling/row_math.h"

namespace quire::sampling {
namespace {

constexpr size_t kEstimatedFrom = 100;

double next_mu(double mu, const MirostatSettings& settings, double weight, double total) {
  const double surprise = -std::log2(weight / total);
  return mu - static_cast<double>(settings.eta) * (surprise - static_cast<double>(settings.tau));
}

// How many tokens to keep (section 4 of the paper), from the most likely logits in falling order.
size_t estimated_count(const std::vector<Candidate>& most_likely, float inverse_temperature, size_t vocab_size,
                       double mu) {
  double weighted = 0.0;
  double squares = 0.0;
  for (size_t i = 0; i + 1 < most_likely.size(); ++i) {
    const double t = std::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    const double b = (static_cast<double>(most_likely[i].value) - static_cast<double>(most_likely[i + 1].value)) *
                     static_cast<double>(inverse_temperature);
    weighted += t * b;
    squares += t * t;
  }
  if (squares == 0.0) return 1;
  const double s = weighted / squares;
  const double epsilon = s - 1.0;
  const auto vocabulary = static_cast<double>(vocab_size);
  // The limit where the exponent is 1: (1 - N^-epsilon) / epsilon goes to ln N.
  const double scale =
      std::abs(epsilon) < 1e-9 ? 1.0 / std::log(vocabulary) : epsilon / (1.0 - std::pow(vocabulary, -epsilon));
  const double count = std::pow(scale * std::exp2(mu), 1.0 / s);
  if (!(count < vocabulary)) return vocab_size;  // NaN too
  return static_cast<size_t>(std::max(count, 1.0));
}

MirostatDraw draw_version_1(std::span<float> logits, float maximum, const MirostatSettings& settings, double mu,
                            double u, SamplingScratch& scratch) {
  std::vector<Candidate>& candidates = scratch.candidates;
  select_largest(logits, std::min(kEstimatedFrom, logits.size()), candidates);
  keep_largest(logits, estimated_count(candidates, settings.inverse_temperature, logits.size(), mu), candidates);
  const double total = replace_by_weights(logits, maximum, settings.inverse_temperature, 0.0f, scratch.block_sums);
  const TokenId id = draw(logits, scratch.block_sums, total, u);
  return {id, next_mu(mu, settings, static_cast<double>(logits[static_cast<size_t>(id)]), total)};
}

MirostatDraw draw_version_2(std::span<float> weights, float maximum, const MirostatSettings& settings, double mu,
                            double u, SamplingScratch& scratch) {
  const double all = replace_by_weights(weights, maximum, settings.inverse_temperature, 0.0f, scratch.block_sums);
  const double least = std::exp2(-mu) * all;
  if (least > 1.0) {  // the most likely token weighs 1
    return {static_cast<TokenId>(first_equal(weights, 1.0f)), next_mu(mu, settings, 1.0, 1.0)};
  }
  const double total = drop_weights_below(weights, static_cast<float>(least), scratch.block_sums);
  const TokenId id = draw(weights, scratch.block_sums, total, u);
  return {id, next_mu(mu, settings, static_cast<double>(weights[static_cast<size_t>(id)]), total)};
}

}  // namespace

MirostatDraw draw_with_mirostat(std::span<float> logits, float maximum, const MirostatSettings& settings, double mu,
                                double u, SamplingScratch& scratch) {
  if (settings.version == 1) return draw_version_1(logits, maximum, settings, mu, u, scratch);
  return draw_version_2(logits, maximum, settings, mu, u, scratch);
}

}  // namespace quire::sampling
