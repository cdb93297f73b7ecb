// A gated short convolution, as it takes the place of attention in most layers of LFM2 (Liquid AI, 2025): of each
// channel
//   (b, c, x) = in_proj(input); y = c * conv(b * x); out_proj(y)
// The convolution sees the last few tokens, which are all of its state.
#pragma once

#include <string>
#include <vector>

#include "nn/attention.h"
#include "types/model_config.h"

namespace quire::nn {

class GatedShortConv final : public SelfAttention {
 public:
  // Parameters "<prefix>.{in_proj, conv, out_proj}", all with a bias or none. Ranks have channels each.
  GatedShortConv(Loader& loader, const std::string& prefix, const ShortConvConfig& sizes, int64_t hidden_size);

  DType input_dtype(const StepContext& step) const override { return in_.input_dtype(step, step.batch.num_tokens); }
  // The rotary is not asked: positions are in the order of the tokens.
  void operator()(const StepContext& step, const CacheLayer& layer, const Rotary& rotary, const ops::ConstView& x,
                  const ops::View& out) const override;
  KvLayerSpec kv_layer(DType /*dtype*/) const override {
    return KvLayerSpec::of_state((kernel_ - 1) * num_channels_, num_channels_);
  }

 private:
  int32_t kernel_;        // tokens
  int64_t num_channels_;  // of this rank
  Linear in_;             // to b, c and x
  Parameter taps_;        // [kernel, num_channels]
  Parameter bias_;        // [num_channels] or empty
  Linear out_;
};

}  // namespace quire::nn
