// Grouped-query attention over the paged cache (Ainslie et al., 2023): projections, rotation, cache
// write, paged read.
#pragma once

#include <string>

#include "nn/batch.h"
#include "nn/linear.h"
#include "nn/rotary.h"
#include "nn/workspace.h"

namespace quire::nn {

struct AttentionConfig {
  int64_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  bool bias = false;         // of the q, k and v projections
  bool output_bias = false;  // of the output projection
  float scale = 1.0f;        // of the scores
  int32_t window = 0;        // 0: sees every earlier position
};

class Attention {
 public:
  Attention() = default;
  // Parameters "<prefix>.{q,k,v,o}_proj".
  Attention(Loader& loader, const std::string& prefix, const AttentionConfig& config);

  // x, out: [num_tokens, hidden_size]; may not overlap. `layer`: of the batch's.
  void operator()(ops::Backend& backend, const Batch& batch, const CacheLayer& layer, const Rotary& rotary,
                  const float* x, float* out, Workspace& workspace) const;

  // Floats taken from the workspace for a batch of num_tokens.
  static int64_t workspace_floats(const AttentionConfig& config, int64_t num_tokens);

 private:
  AttentionConfig config_;
  Linear qkv_;
  Linear output_;
};

}  // namespace quire::nn
