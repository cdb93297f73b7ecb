// Multi-head latent attention (DeepSeek-AI, 2024). Keys and values of all heads are projections of one small vector of
// each token, the latent, which is normalised and cached with a rotated key that the heads share; nothing else is.
//
// The keys' projection is taken to the queries' side, q . (U c) = (U^T q) . c, so that attention runs over the cached
// vectors themselves, as over one kv head of kv_rank + rope_head_dim numbers: heads' queries meet the whole of it, and
// the latent part of what they read is projected to their values afterwards.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"

namespace quire::nn {

struct LatentAttentionOptions {
  LatentAttentionConfig sizes;
  int64_t hidden_size = 0;
  int32_t num_heads = 0;  // of all ranks
  bool bias = false;      // of the projections to the ranks and of the output
  double norm_eps = 1e-6;
  float scale = 1.0f;
};

class LatentAttention final : public SelfAttention {
 public:
  // Parameters "<prefix>.{q_proj, or q_a_proj, q_a_layernorm, q_b_proj, kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj,
  // o_proj}"; in place of kv_b_proj k_b_proj [heads, kv_rank, nope] and v_b_proj [heads, value, kv_rank].
  LatentAttention(Loader& loader, const std::string& prefix, const LatentAttentionOptions& options);

  void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x,
                  const ops::View& out) const override;
  DType input_dtype(const StepContext& step) const override;
  KvLayerSpec kv_layer(DType dtype) const override {
    return {.kind = KvKind::kLatent,
            .num_kv_heads = 1,
            .key_dim = static_cast<int32_t>(cached_dim()),
            .value_dim = static_cast<int32_t>(options_.sizes.kv_rank),
            .dtype = dtype};
  }

 private:
  // A matrix for each head.
  struct Matrices {
    std::vector<std::unique_ptr<ops::PackedMatrix>> owned;
    std::unique_ptr<ops::PackedGroup> heads;
  };

  void load_up_projections(Loader& loader, const std::string& prefix);
  // [heads, rows, columns] by heads.
  Matrices pack_heads(Loader& loader, const StoredWeight& stack) const;
  static void pack_head(Loader& loader, const Result<StoredWeight>& matrix, Matrices& out);
  void finish_heads(Loader& loader, Matrices& heads) const;  // all are packed
  ops::View project_queries(const StepContext& step, const Rotary& rotary, const ops::ConstView& x) const;
  // out[t][h] = weights[h] x[t][h], heads x_head and out_head floats apart. `first`: what number the weights of head 0
  // have among those that adapters add to.
  void project_heads(const StepContext& step, const Matrices& weights, int32_t first,
                     const RowAdapters::HeadRows& rows) const;
  int64_t query_head_dim() const { return options_.sizes.nope_head_dim + options_.sizes.rope_head_dim; }
  int64_t cached_dim() const { return options_.sizes.kv_rank + options_.sizes.rope_head_dim; }

  LatentAttentionOptions options_;
  Range heads_;        // of this rank; the latent is every rank's
  Linear query_down_;  // to query_rank; unused where there is none
  RmsNorm query_norm_;
  Linear query_up_;  // to [heads, nope + rope], or from the hidden state
  Linear kv_down_;   // to [kv_rank + rope]
  RmsNorm kv_norm_;
  Matrices key_up_;    // a head: [kv_rank, nope]
  Matrices value_up_;  // a head: [value, kv_rank]
  Linear output_;
  std::shared_ptr<const AdaptableLayer> layer_;  // kv_b_proj
};

}  // namespace quire::nn
