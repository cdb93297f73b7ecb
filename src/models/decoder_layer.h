// A layer of a decoder: attention and a feed-forward block around the residual stream, with norms where the family's
// shape has them. Heads that draft are made of such layers, too.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/decoder.h"
#include "nn/hidden_states.h"
#include "nn/norm.h"
#include "nn/rotary.h"

namespace quire::models {

// The input of a block: the stream with what the last block added, times residual_scale, normalised if this one begins
// with a norm, then in `normed` [num_tokens, hidden_size], as `dtype` where the norm can give that.
ops::View enter_block(const nn::StepContext& step, const nn::StreamNorm& norm, nn::HiddenStates& states,
                      const ops::View& normed, float residual_scale, DType dtype = DType::kF32);

class DecoderLayer {
 public:
  // Parameters behind `prefix`, "<root>.layers.<i>.", are asked for in the order of the way through. index: which of
  // the configuration's layers it is.
  DecoderLayer(nn::Loader& loader, const DecoderShape& shape, const std::string& prefix, const ModelConfig& config,
               int32_t index);

  // REQUIRES: before each run; outlives it.
  void use_rotary(const nn::Rotary* rotary) { rotary_ = rotary; }
  // What it caches: of attention, then of what stands beside it.
  std::vector<nn::KvLayerSpec> kv_layers(DType dtype) const;
  size_t num_caches() const { return (attention_ != nullptr ? 1 : 0) + (beside_attention_ != nullptr ? 1 : 0); }
  // caches: [num_caches()]. normed: scratch, floats [num_tokens, hidden_size]. What the last block adds, or of parallel
  // ones both, is left pending.
  void run(const nn::StepContext& step, std::span<const nn::CacheLayer> caches, nn::HiddenStates& states,
           const ops::View& normed) const;

 private:
  void attend(const nn::StepContext& step, std::span<const nn::CacheLayer> caches, const ops::ConstView& x,
              const ops::View& out) const;
  // What stands side by side reads the same numbers, which are floats where it would have them differently.
  DType input_dtype(const nn::StepContext& step) const;
  static void leave(const nn::StepContext& step, const nn::StreamNorm& norm, nn::HiddenStates& states);

  nn::StreamNorm before_attention_;
  std::unique_ptr<nn::SelfAttention> attention_;         // or none
  std::unique_ptr<nn::SelfAttention> beside_attention_;  // or none
  nn::StreamNorm after_attention_;
  nn::StreamNorm before_mlp_;
  std::unique_ptr<nn::FeedForward> mlp_;  // or none
  nn::StreamNorm after_mlp_;
  bool parallel_ = false;
  float residual_scale_ = 1;
  const nn::Rotary* rotary_ = nullptr;
};

}  // namespace quire::models
