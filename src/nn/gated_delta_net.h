// A gated delta net (Yang, Kautz and Hatamizadeh, 2024), as it takes the place of attention in Qwen3-Next and its kin:
// projections, a short convolution over queries, keys and values, the delta rule over a state of each head, a norm of
// each head, a gate, and the projection back.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"
#include "types/model_config.h"

namespace quire::nn {

struct GatedDeltaNetOptions {
  DeltaNetConfig sizes;
  int64_t hidden_size = 0;
  double norm_eps = 1e-6;
};

class GatedDeltaNet final : public SelfAttention {
 public:
  // Parameters "<prefix>.in_proj_qkvz", of which each key head's rows lie together, or "<prefix>.{in_proj_qkv,
  // in_proj_z}"; "<prefix>.in_proj_ba" likewise, or "<prefix>.{in_proj_b, in_proj_a}"; "<prefix>.{conv1d.weight,
  // dt_bias, norm.weight, out_proj}"; "<prefix>.A_log", or as GGUF has it "<prefix>.A", which is -e^A_log. Or by OLMo's
  // names, "<prefix>.{q,k,v,g,b,a,o}_proj", "<prefix>.o_norm.weight", and of the convolution one tensor or
  // "<prefix>.{q,k,v}_conv1d.weight".
  GatedDeltaNet(Loader& loader, const std::string& prefix, const GatedDeltaNetOptions& options);

  DType input_dtype(const StepContext& step) const override { return in_.input_dtype(step, step.batch.num_tokens); }
  // The rotary is not asked: positions are in the order of the tokens.
  void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x,
                  const ops::View& out) const override;
  KvLayerSpec kv_layer(DType /*dtype*/) const override {
    return KvLayerSpec::of_state(conv_state_size() + num_value_heads() * head_state_size(),
                                 num_channels() + key_size() + value_size() + 2 * num_value_heads());
  }

 private:
  // Rows of the projections that this rank has, by its heads.
  std::vector<Linear::Part> projections(const Loader& loader, const std::string& prefix) const;
  std::vector<Linear::Part> projections_apart(const Loader& loader, const std::string& prefix) const;
  std::vector<float> load_taps(Loader& loader, const std::string& prefix) const;
  // A projection that has each key head's rows together: rows of its own, of several kinds, then head_rows of each of
  // its value heads, of two kinds. Taken are this rank's, kind by kind.
  Linear::Part by_key_heads(const std::string& name, const std::vector<int64_t>& own_rows, int64_t head_rows) const;
  void load_small(Loader& loader, const std::string& prefix);

  // Of this rank.
  int64_t num_key_heads() const { return share_.kv_heads.count; }
  int64_t num_value_heads() const { return share_.heads.count; }
  int64_t key_size() const { return num_key_heads() * options_.sizes.key_head_dim; }
  int64_t value_size() const { return num_value_heads() * options_.sizes.value_head_dim; }
  int64_t num_channels() const { return 2 * key_size() + value_size(); }  // queries, keys, values
  int64_t conv_state_size() const { return (options_.sizes.conv_kernel - 1) * num_channels(); }
  int64_t head_state_size() const { return int64_t{options_.sizes.key_head_dim} * options_.sizes.value_head_dim; }
  // Channels of this rank among those of all.
  std::vector<Range> channels() const;

  GatedDeltaNetOptions options_;
  HeadShare share_;         // heads: of values
  Linear in_;               // to queries, keys, values, gates of the output, updates, decays
  Parameter conv_;          // [kernel, num_channels]
  Parameter rates_;         // [num_value_heads], below 0
  Parameter decay_biases_;  // [num_value_heads]
  Parameter norm_;          // [value_head_dim]
  Linear out_;
};

}  // namespace quire::nn
