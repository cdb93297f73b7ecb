// Which experts each token takes, and with what weight: the router of a mixture of experts (Shazeer et al., 2017). In
// the words of MoeConfig, for the logits l of one token:
//   s = softmax(l), sigmoid(l), or l itself where the softmax is taken over the chosen
//   c = s + correction_bias            decides, and nothing else (DeepSeek-AI, 2024, "auxiliary-loss-free")
//   groups of num_experts / num_groups neighbours are judged by their best c, or the sum of their best two; only
//   the groups_per_token best take part
//   the experts_per_token best c are chosen; the lower index where two are equal
//   w = s of the chosen, (softmax over them,) divided by their sum and sum_offset when `normalise`, times `scale`,
//   times the expert's own where there are such
// The chosen pairs of token and expert are then laid out by expert, for products of an expert with all its tokens: the
// "rows" of ops/grouped_linear.h. A token's weights depend on its logits alone.
#pragma once

#include <cstdint>
#include <limits>

#include "types/moe_config.h"

namespace quire::ops {

struct MoeRoutingArgs {
  const float* logits = nullptr;           // [num_tokens, num_experts]
  const float* correction_bias = nullptr;  // [num_experts] or nullptr
  const float* expert_scales = nullptr;    // [num_experts] or nullptr
  int64_t num_tokens = 0;
  int32_t num_experts = 0;
  int32_t experts_per_token = 0;
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = false;
  float sum_offset = 1e-20f;  // above 0: no division by zero
  float scale = 1.0f;
  int32_t num_groups = 1;        // divides num_experts
  int32_t groups_per_token = 1;  // their experts are at least experts_per_token
  GroupScore group_score = GroupScore::kBest;
  // Other ranks have the experts outside of [first_expert, end_expert): here their weight is 0.
  int32_t first_expert = 0;
  int32_t end_expert = std::numeric_limits<int32_t>::max();
  float* weights = nullptr;    // [num_tokens, experts_per_token], the best first
  int32_t* rows = nullptr;     // [num_tokens, experts_per_token]: the row of that pair
  int32_t* tokens = nullptr;   // [num_tokens * experts_per_token]: the token of each row; rising within an expert
  int32_t* offsets = nullptr;  // [num_experts + 1]: rows [offsets[e], offsets[e + 1]) are expert e's
};

void check(const MoeRoutingArgs& args);

constexpr bool is_here(const MoeRoutingArgs& args, int32_t expert) {
  return expert >= args.first_expert && expert < args.end_expert;
}

}  // namespace quire::ops
