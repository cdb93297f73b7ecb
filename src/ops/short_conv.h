// A causal convolution over a few tokens, of each channel by itself, as recurrent layers have it in front of their
// state (Fu et al., 2023; Gu and Dao, 2023):
//   out[t][c] = f(bias[c] + sum_j weight[j][c] in[t - kernel + 1 + j][c])
// in which tokens before the text are zeros. The state is the inputs of the last kernel - 1 tokens, the oldest first,
// [kernel - 1, num_channels] floats from state_offset on; behind them go those of drafts, [most_drafts, num_channels].
#pragma once

#include <cstdint>

#include "ops/state_cache.h"

namespace quire::ops {

inline constexpr int32_t kMostConvTokens = 8;  // of a kernel

struct ShortConvArgs {
  StateRuns runs;
  int64_t state_offset = 0;   // floats
  const float* in = nullptr;  // [num_tokens, num_channels], tokens in_stride floats apart
  int64_t in_stride = 0;
  int64_t num_tokens = 0;
  int64_t num_channels = 0;
  int32_t kernel = 0;             // tokens: 2 to kMostConvTokens
  const float* weight = nullptr;  // [kernel, num_channels]
  const float* bias = nullptr;    // [num_channels] or nullptr
  bool silu = false;              // f(x) = x / (1 + e^-x); else x
  float* out = nullptr;           // [num_tokens, num_channels], tokens out_stride apart; not `in`
  int64_t out_stride = 0;

  int64_t draft_size() const { return num_channels; }  // floats beside the state of a draft token
  int64_t state_size() const { return (kernel - 1 + runs.cache.most_drafts) * num_channels; }
};

void check(const ShortConvArgs& args);

}  // namespace quire::ops
