#include "ops/cpu/moe_routing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace quire::ops::cpu {
namespace {

// Numbers of one token, reused for the next.
struct Scratch {
  std::vector<float> scores;  // [num_experts]
  std::vector<float> choice;  // [num_experts]: what decides; -inf: not to be chosen
  std::vector<float> groups;  // [num_groups]
};

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

void softmax(float* values, int64_t count) {
  const float highest = *std::max_element(values, values + count);
  float total = 0;
  for (int64_t i = 0; i < count; ++i) total += values[i] = std::exp(values[i] - highest);
  for (int64_t i = 0; i < count; ++i) values[i] /= total;
}

// The place of the largest value; the first of equals, and whatever comes first among values that are not numbers.
int32_t best_of(const float* values, int32_t count) {
  int32_t best = 0;
  for (int32_t i = 1; i < count; ++i) {
    if (values[i] > values[best]) best = i;
  }
  return best;
}

float group_score(const float* choice, int32_t size, GroupScore how) {
  float best = kMinusInfinity;
  float second = kMinusInfinity;
  for (int32_t i = 0; i < size; ++i) {
    if (choice[i] > best) {
      second = best;
      best = choice[i];
    } else if (choice[i] > second) {
      second = choice[i];
    }
  }
  return how == GroupScore::kBest || size == 1 ? best : best + second;
}

// Leaves choices in the best groups alone.
void keep_best_groups(const MoeRoutingArgs& args, Scratch& scratch) {
  const int32_t size = args.num_experts / args.num_groups;
  scratch.groups.resize(static_cast<size_t>(args.num_groups));
  for (int32_t g = 0; g < args.num_groups; ++g)
    scratch.groups[static_cast<size_t>(g)] = group_score(scratch.choice.data() + g * size, size, args.group_score);
  std::vector<bool> kept(static_cast<size_t>(args.num_groups));
  for (int32_t i = 0; i < args.groups_per_token; ++i) {
    int32_t best = -1;
    for (int32_t g = 0; g < args.num_groups; ++g) {
      const auto at = static_cast<size_t>(g);
      if (!kept[at] && (best < 0 || scratch.groups[at] > scratch.groups[static_cast<size_t>(best)])) best = g;
    }
    kept[static_cast<size_t>(best)] = true;
  }
  for (int32_t e = 0; e < args.num_experts; ++e) {
    if (!kept[static_cast<size_t>(e / size)]) scratch.choice[static_cast<size_t>(e)] = kMinusInfinity;
  }
}

// Experts and weights of one token, the best first.
void route_token(const MoeRoutingArgs& args, const float* logits, Scratch& scratch, int32_t* experts, float* weights) {
  scratch.scores.assign(logits, logits + args.num_experts);
  if (args.score == RouterScore::kSoftmax) softmax(scratch.scores.data(), args.num_experts);
  if (args.score == RouterScore::kSigmoid) {
    for (float& score : scratch.scores) score = 1.0f / (1.0f + std::exp(-score));
  }
  scratch.choice = scratch.scores;
  if (args.correction_bias != nullptr) {
    for (size_t e = 0; e < scratch.choice.size(); ++e) scratch.choice[e] += args.correction_bias[e];
  }
  // A choice that is not a number would hide those behind it.
  for (float& choice : scratch.choice) {
    if (std::isnan(choice)) choice = kMinusInfinity;
  }
  if (args.groups_per_token < args.num_groups) keep_best_groups(args, scratch);

  const int32_t count = args.experts_per_token;
  for (int32_t r = 0; r < count; ++r) {
    int32_t best = best_of(scratch.choice.data(), args.num_experts);
    // Where nothing but -inf is left: the first that was not taken.
    if (scratch.choice[static_cast<size_t>(best)] == kMinusInfinity) {
      for (best = 0; std::find(experts, experts + r, best) != experts + r;) ++best;
    }
    experts[r] = best;
    weights[r] = scratch.scores[static_cast<size_t>(best)];
    scratch.choice[static_cast<size_t>(best)] = kMinusInfinity;
  }
  if (args.score == RouterScore::kSoftmaxOfChosen) softmax(weights, count);
  if (args.normalise) {
    float total = args.sum_offset;
    for (int32_t r = 0; r < count; ++r) total += weights[r];
    for (int32_t r = 0; r < count; ++r) weights[r] /= total;
  }
  for (int32_t r = 0; r < count; ++r) {
    weights[r] = is_here(args, experts[r]) ? weights[r] * args.scale : 0.0f;
    if (args.expert_scales != nullptr) weights[r] *= args.expert_scales[experts[r]];
  }
}

// Pairs by expert: `rows` holds the expert of each and is made its row.
void sort_by_expert(const MoeRoutingArgs& args) {
  const int64_t pairs = args.num_tokens * args.experts_per_token;
  std::fill(args.offsets, args.offsets + args.num_experts + 1, 0);
  for (int64_t i = 0; i < pairs; ++i) ++args.offsets[args.rows[i] + 1];
  for (int32_t e = 0; e < args.num_experts; ++e) args.offsets[e + 1] += args.offsets[e];
  std::vector<int32_t> next(args.offsets, args.offsets + args.num_experts);
  for (int64_t i = 0; i < pairs; ++i) {
    int32_t& row = next[static_cast<size_t>(args.rows[i])];
    args.tokens[row] = static_cast<int32_t>(i / args.experts_per_token);
    args.rows[i] = row++;
  }
}

}  // namespace

void route(const MoeRoutingArgs& args, ThreadPool& pool) {
  constexpr int64_t kTaskTokens = 32;
  pool.parallel_for((args.num_tokens + kTaskTokens - 1) / kTaskTokens, [&](int64_t task, int) {
    Scratch scratch;
    const int64_t end = std::min(args.num_tokens, (task + 1) * kTaskTokens);
    for (int64_t t = task * kTaskTokens; t < end; ++t) {
      const int64_t at = t * args.experts_per_token;
      route_token(args, args.logits + t * args.num_experts, scratch, args.rows + at, args.weights + at);
    }
  });
  sort_by_expert(args);
}

}  // namespace quire::ops::cpu
