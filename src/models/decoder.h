// The decoder that most families are: embeddings, layers of attention and feed-forward blocks around a residual
// stream, a norm, a head. A family says where its norms stand; the rest is numbers of its ModelConfig.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/model.h"
#include "nn/attention.h"
#include "nn/hidden_states.h"
#include "nn/mlp.h"

namespace quire::models {

// What a family adds to the stream behind both blocks of a layer.
class LayerEnd {
 public:
  virtual ~LayerEnd() = default;
  virtual void operator()(const nn::StepContext& step, nn::HiddenStates& states) const = 0;
};

// What a family gives its layers beside the stream, made of tokens and their embeddings.
class LayerInputs {
 public:
  virtual ~LayerInputs() = default;
  // Sets states.layer_inputs, in the workspace. states.residual: the embeddings.
  virtual void make(const nn::StepContext& step, nn::HiddenStates& states) const = 0;
};

struct DecoderShape {
  // Norms of a layer by their names behind "<root>.<layers>.<i>."; empty: the layer has none there. What comes before a
  // block normalises its input, what comes after it what it adds to the stream.
  nn::NormKind norm = nn::NormKind::kRms;
  std::string_view before_attention = "input_layernorm";
  std::string_view after_attention;
  std::string_view before_mlp = "post_attention_layernorm";
  std::string_view after_mlp;
  std::string_view after_layers = "norm";  // behind "<root>."
  // Both blocks of a layer read the stream as it came in, behind the norm before attention, or each behind its own.
  bool parallel = false;
  // Whether a layer has either; one of them at least.
  bool has_attention = true;
  bool has_mlp = true;
  const char* attention_output = "o_proj";
  nn::QkNorm qk_norm = nn::QkNorm::kNone;
  const char* query_norm = "q_norm";
  const char* key_norm = "k_norm";
  const char* attention_gate = nullptr;  // the projection of gates of attention's output; nullptr: there are none
  bool sinks = false;                    // of attention
  // The feed-forward block of a layer, its parameters behind "<root>.<layers>.<i>.". nullptr:
  // "mlp.{gate,up,down}_proj".
  std::unique_ptr<nn::FeedForward> (*feed_forward)(nn::Loader& loader, const std::string& prefix,
                                                   const ModelConfig& config, int32_t layer) = nullptr;
  // The same for attention, its parameters behind `prefix` "<root>.<layers>.<i>.". nullptr: nn::Attention.
  std::unique_ptr<nn::SelfAttention> (*attention)(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t layer) = nullptr;
  // What stands beside attention: it reads the same input, has a cache of its own, and what it gives is added. nullptr:
  // nothing does.
  std::unique_ptr<nn::SelfAttention> (*beside_attention)(nn::Loader& loader, const std::string& prefix,
                                                         const ModelConfig& config, int32_t layer) = nullptr;
  // Behind `prefix` "<root>.<layers>.<i>." and "<root>." each. nullptr: there are none.
  std::unique_ptr<LayerEnd> (*layer_end)(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                         int32_t layer) = nullptr;
  std::unique_ptr<LayerInputs> (*layer_inputs)(nn::Loader& loader, const std::string& prefix,
                                               const ModelConfig& config) = nullptr;
  // What of the above is another in this layer. nullptr: nothing.
  void (*of_layer)(const ModelConfig& config, int32_t layer, DecoderShape& shape) = nullptr;
  // [num_layers]: the layer whose keys and values each reads, itself or one before it that reads its own. Empty:
  // itself.
  std::vector<int32_t> caches = {};
  std::string_view root = "model";
  std::string_view embeddings = "embed_tokens";  // behind "<root>."
  std::string_view layers = "layers";            // the same
  std::string_view head = "lm_head";
  bool head_bias = false;
  std::vector<std::string_view> buffers;  // suffixes of tensors that are no parameters
  std::vector<std::string_view> others;   // prefixes of tensors that belong to other parts of a larger model
};

// Where the text model is a part of a larger one: its names, and those of the parts beside it.
void find_text_model(const nn::Loader& loader, DecoderShape& shape);

Result<std::unique_ptr<Model>> build_decoder(const DecoderShape& shape, const ModelConfig& config,
                                             int64_t num_positions, nn::Loader& loader);

// What attention of this layer is by the configuration.
nn::AttentionConfig attention_config(const DecoderShape& shape, const ModelConfig& config, int32_t layer);

}  // namespace quire::models
