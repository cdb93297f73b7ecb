// What a mixture of experts adds to each token:
//   out[t] = sum_r weights[t][r] * experts[rows[t][r]], in the order of r,
//            + shared[t], or + sigmoid(shared_gate[t]) * shared[t] where there is a gate
#pragma once

#include <cstdint>

namespace quire::ops {

struct MoeCombineArgs {
  const float* experts = nullptr;  // [num_tokens * experts_per_token, size]: see ops/moe_routing.h
  const int32_t* rows = nullptr;   // [num_tokens, experts_per_token]
  const float* weights = nullptr;  // [num_tokens, experts_per_token]
  int32_t experts_per_token = 0;
  const float* shared = nullptr;       // [num_tokens, size] or nullptr
  const float* shared_gate = nullptr;  // [num_tokens], before the sigmoid; or nullptr
  int64_t num_tokens = 0;
  int64_t size = 0;
  float* out = nullptr;  // [num_tokens, size]; may be `shared`
};

void check(const MoeCombineArgs& args);

}  // namespace quire::ops
