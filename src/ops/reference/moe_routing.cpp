#include "ops/reference/moe_routing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace quire::ops::reference {
namespace {

std::vector<double> softmax(std::vector<double> values) {
  const double highest = *std::max_element(values.begin(), values.end());
  double total = 0;
  for (double& value : values) total += value = std::exp(value - highest);
  for (double& value : values) value /= total;
  return values;
}

// Indices by falling value, equal ones in their order.
std::vector<size_t> by_value(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] > values[b]; });
  return order;
}

// Which experts may be chosen.
std::vector<bool> experts_of_best_groups(const MoeRoutingArgs& args, const std::vector<double>& choice) {
  const auto size = static_cast<size_t>(args.num_experts / args.num_groups);
  std::vector<double> groups;
  for (size_t g = 0; g < static_cast<size_t>(args.num_groups); ++g) {
    std::vector<double> members(choice.begin() + static_cast<int64_t>(g * size),
                                choice.begin() + static_cast<int64_t>((g + 1) * size));
    std::sort(members.rbegin(), members.rend());
    const bool two = args.group_score == GroupScore::kSumOfBestTwo && size > 1;
    groups.push_back(two ? members[0] + members[1] : members[0]);
  }
  std::vector<bool> allowed(choice.size());
  const std::vector<size_t> order = by_value(groups);
  for (size_t i = 0; i < static_cast<size_t>(args.groups_per_token); ++i) {
    for (size_t e = order[i] * size; e < (order[i] + 1) * size; ++e) allowed[e] = true;
  }
  return allowed;
}

void route_token(const MoeRoutingArgs& args, int64_t token, std::vector<int32_t>& experts) {
  const float* logits = args.logits + token * args.num_experts;
  std::vector<double> scores(logits, logits + args.num_experts);
  if (args.score == RouterScore::kSoftmax) scores = softmax(scores);
  if (args.score == RouterScore::kSigmoid) {
    for (double& score : scores) score = 1.0 / (1.0 + std::exp(-score));
  }
  std::vector<double> choice = scores;
  for (size_t e = 0; e < choice.size() && args.correction_bias != nullptr; ++e) choice[e] += args.correction_bias[e];
  const std::vector<bool> allowed = experts_of_best_groups(args, choice);

  std::vector<double> weights;
  for (const size_t e : by_value(choice)) {
    if (!allowed[e] || weights.size() == static_cast<size_t>(args.experts_per_token)) continue;
    experts.push_back(static_cast<int32_t>(e));
    weights.push_back(scores[e]);
  }
  if (args.score == RouterScore::kSoftmaxOfChosen) weights = softmax(weights);
  const double offset = args.sum_offset;
  const double total = args.normalise ? std::accumulate(weights.begin(), weights.end(), offset) : 1.0;
  const int32_t* chosen = experts.data() + token * args.experts_per_token;
  for (size_t r = 0; r < weights.size(); ++r) {
    double weight = is_here(args, chosen[r]) ? weights[r] / total * static_cast<double>(args.scale) : 0.0;
    if (args.expert_scales != nullptr) weight *= static_cast<double>(args.expert_scales[chosen[r]]);
    args.weights[token * args.experts_per_token + static_cast<int64_t>(r)] = static_cast<float>(weight);
  }
}

}  // namespace

void route(const MoeRoutingArgs& args) {
  std::vector<int32_t> experts;  // of each pair
  for (int64_t t = 0; t < args.num_tokens; ++t) route_token(args, t, experts);
  int32_t row = 0;
  for (int32_t e = 0; e < args.num_experts; ++e) {
    args.offsets[e] = row;
    for (size_t pair = 0; pair < experts.size(); ++pair) {
      if (experts[pair] != e) continue;
      args.tokens[row] = static_cast<int32_t>(pair) / args.experts_per_token;
      args.rows[pair] = row++;
    }
  }
  args.offsets[args.num_experts] = row;
}

}  // namespace quire::ops::reference
