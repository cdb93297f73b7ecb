// What the families with experts share: the numbers of their configurations and the choice of a layer's block.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/config_reader.h"
#include "models/gguf_reader.h"
#include "models/model.h"
#include "nn/moe.h"

namespace quire::models {

struct MoeDefaults {
  int64_t num_experts = 8;
  int64_t experts_per_token = 2;  // 0: the key must be there
  // The key and the default of one expert's intermediate size.
  std::string_view size_key = "intermediate_size";
  int64_t size = 0;  // 0: the key must be there
};

// num_experts (under any of its names), experts_per_token and intermediate_size; every layer sparse. Errors:
// invalid_argument naming the field.
Result<MoeConfig> read_moe(const boost::json::object& config, const ModelConfig& model, const MoeDefaults& defaults);

// What families made after DeepSeek's take where their configurations are silent.
struct RoutedMoeDefaults {
  int64_t num_experts = 0;
  int64_t experts_per_token = 0;  // 0: the key must be there
  int64_t size = 0;               // of an expert
  int64_t num_shared = 0;         // experts that every token takes, held as one
  int64_t first_sparse = 0;       // the layers before it are dense
  double scale = 1;               // of the weights
};

// read_moe() of experts of "moe_intermediate_size", with those of "n_shared_experts", "routed_scaling_factor",
// "first_k_dense_replace" and "moe_layer_freq".
Result<MoeConfig> read_routed_moe(const boost::json::object& config, const ModelConfig& model,
                                  const RoutedMoeDefaults& defaults);
// The same of GGUF, with whether weights sum to 1. REQUIRES: num_layers of `model` has no layers of further tokens.
Result<MoeConfig> read_gguf_routed_moe(const GgufReader& reader, const ModelConfig& model,
                                       const RoutedMoeDefaults& defaults);

// "mlp_layer_types", where it is there: "dense" or "sparse" for each layer.
Status read_mlp_layer_types(const boost::json::object& config, MoeConfig& moe);

// DeepSeek V3's: sigmoids, corrected for the choice alone, groups by the sum of their best two.
void set_sigmoid_router(MoeConfig& moe);

// "n_group" and "topk_group"; GGUF's are one group where they are not named.
Status read_groups(const ConfigReader& reader, int64_t groups, int64_t kept, MoeConfig& moe);
Status read_gguf_groups(const GgufReader& reader, MoeConfig& moe);

// Layers that predict further tokens: GGUF counts them with the others, config.json by themselves. `fallback`: how many
// where the file does not say.
Status read_gguf_next_layers(const GgufReader& reader, int64_t fallback, ModelConfig& out);
// They follow the model's own and are built by themselves, if at all; what GGUF has no other name for keeps the stored
// one.
std::vector<std::string> prefixes_of_next_layers(const ModelConfig& config);

// "decoder_sparse_step" and "mlp_only_layers".
Status read_qwen_sparse_layers(const boost::json::object& config, ModelConfig& out);

// MoeBlock or, on a layer that is not sparse, GatedMlp: what a DecoderShape asks for.
std::unique_ptr<nn::FeedForward> sparse_or_dense(nn::Loader& loader, const std::string& prefix,
                                                 const ModelConfig& config, int32_t layer);

}  // namespace quire::models
