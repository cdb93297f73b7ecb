// Mamba 2 (Dao and Gu, 2024) in the place of attention: a projection to gates, values, what they are written by and
// read by, and steps; a short convolution; a recurrence over a state of each head; a gate, a norm, and the projection
// back.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"
#include "types/model_config.h"

namespace quire::nn {

struct Mamba2Options {
  Mamba2Config sizes;
  int64_t hidden_size = 0;
  double norm_eps = 1e-6;
};

class Mamba2 final : public SelfAttention {
 public:
  // Parameters "<prefix>.{in_proj, conv1d.weight, conv1d.bias, A_log, dt_bias, D, norm.weight, out_proj}"; GGUF has
  // A, which is -e^A_log, in the place of A_log. Ranks have heads each; of a group of heads that several ranks have,
  // each has what they are written and read by, and the norm of all is that of what they gather.
  Mamba2(Loader& loader, const std::string& prefix, const Mamba2Options& options);

  DType input_dtype(const StepContext& step) const override { return in_.input_dtype(step, step.batch.num_tokens); }
  // The rotary is not asked: positions are in the order of the tokens.
  void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x,
                  const ops::View& out) const override;
  KvLayerSpec kv_layer(DType /*dtype*/) const override {
    return KvLayerSpec::of_state(conv_state_size() + value_size() * options_.sizes.state_size,
                                 num_channels() + key_size() + value_size() + num_heads());
  }

 private:
  // Of this rank.
  int64_t num_heads() const { return share_.heads.count; }
  int64_t num_groups() const { return share_.kv_heads.count; }
  int64_t value_size() const { return num_heads() * options_.sizes.head_dim; }
  int64_t key_size() const { return num_groups() * options_.sizes.state_size; }
  int64_t num_channels() const { return value_size() + 2 * key_size(); }  // values, keys, queries
  int64_t conv_state_size() const { return (options_.sizes.conv_kernel - 1) * num_channels(); }
  // Of the numbers that in_ gives.
  std::vector<float> multiplier_of_each() const;
  // Channels of this rank among those of all, from `first` on.
  std::vector<Range> channels(int64_t first) const;
  // Heads of groups that other ranks have heads of, too: which values each rank has. Empty: of none.
  std::vector<comm::ColumnRange> gathered_values(Loader& loader, const Linear::Part& output) const;
  void load_small(Loader& loader, const std::string& prefix);
  // Of the groups of heads, each by itself.
  void norm(const StepContext& step, const ops::View& values) const;
  void norm_groups(const StepContext& step, const ops::View& values, int64_t num_groups) const;

  Mamba2Options options_;
  HeadShare share_;                         // kv_heads: groups
  std::vector<comm::ColumnRange> columns_;  // [ranks], as gathered_values() has them
  Linear in_;                               // to gates, the channels, steps
  Parameter multipliers_;                   // [what in_ gives] or empty
  Parameter conv_;                          // [kernel, num_channels]
  Parameter conv_bias_;                     // [num_channels] or empty
  Parameter rates_;                         // [num_heads], below 0
  Parameter step_biases_;                   // [num_heads]
  Parameter skips_;                         // [num_heads]
  Parameter norm_weights_;                  // [num_heads, head_dim], of all ranks' where they are gathered; or empty
  Linear out_;
};

}  // namespace quire::nn
