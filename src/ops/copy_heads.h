// out[t][h][0 .. size) = in[t][h][0 .. size), in arrays of different strides.
#pragma once

#include <cstdint>

namespace quire::ops {

struct CopyHeadsArgs {
  const float* in = nullptr;
  int64_t in_token_stride = 0;  // in floats
  int64_t in_head_stride = 0;
  int64_t num_tokens = 0;
  int64_t num_heads = 0;
  int64_t size = 0;
  float* out = nullptr;  // does not overlap `in`
  int64_t out_token_stride = 0;
  int64_t out_head_stride = 0;
};

void check(const CopyHeadsArgs& args);

}  // namespace quire::ops
