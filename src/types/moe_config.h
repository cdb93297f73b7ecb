// The numbers of a mixture of experts: how a router chooses, and what sizes the experts have.
#pragma once

#include <cstdint>
#include <vector>

namespace quire {

// What a router makes of its logits, one for each expert.
enum class RouterScore : uint8_t {
  kSoftmax,          // over all experts, before the choice (Mixtral, Qwen, DeepSeek V2)
  kSoftmaxOfChosen,  // the choice by logits, then over the chosen (gpt-oss)
  kSigmoid,          // of each by itself (DeepSeek V3)
};

// How a group of experts is judged where only the best groups take part.
enum class GroupScore : uint8_t { kBest, kSumOfBestTwo };

struct MoeConfig {
  int32_t num_experts = 0;  // 0: the model has none
  int32_t experts_per_token = 0;
  int64_t intermediate_size = 0;         // of one expert
  int64_t shared_intermediate_size = 0;  // of the expert that every token takes; 0: there is none
  bool shared_gate = false;              // the shared expert's output is weighted by the sigmoid of a projection
  RouterScore score = RouterScore::kSoftmax;
  bool router_bias = false;      // of the router's projection
  bool correction_bias = false;  // added to the scores for the choice alone
  bool normalise = false;        // weights of the chosen sum to 1
  double sum_offset = 1e-20;     // added to the sum by which they are divided
  double scale = 1.0;            // of the weights, after that
  bool expert_scales = false;    // and one of each expert's
  // Weights are multiplied into what experts are given, not into what they give. REQUIRES: experts_per_token is 1.
  bool weighs_inputs = false;
  int32_t num_groups = 1;        // of neighbouring experts
  int32_t groups_per_token = 1;  // that take part
  GroupScore group_score = GroupScore::kBest;
  bool gated = true;         // false: an expert is down(f(up(x))), and so is the shared one
  bool expert_bias = false;  // of the experts' projections
  double clamp_limit = 0;    // the experts' gate is that of ops/clamped_swiglu.h; 0: the model's activation
  double clamp_alpha = 0;
  std::vector<bool> sparse_layers;  // [num_layers]; the others have a dense block
};

// Multi-head latent attention (DeepSeek-AI, 2024): keys and values of all heads are projections of one small vector,
// which is all that is cached, with one key that carries the position and that the heads share.
struct LatentAttentionConfig {
  int64_t query_rank = 0;  // 0: queries are projected from the hidden state directly
  int64_t kv_rank = 0;     // of the cached vector; 0: the model's attention is not of this kind
  int32_t nope_head_dim = 0;
  int32_t rope_head_dim = 0;
  int32_t value_head_dim = 0;
};

}  // namespace quire
