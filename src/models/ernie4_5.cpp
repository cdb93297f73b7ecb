#include "models/ernie4_5.h"

#include <algorithm>

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

Status set_biases(const ConfigReader& reader, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("use_bias", false));
  out.attention_bias = out.attention_output_bias = out.mlp_bias;
  return {};
}

void set_ernie4_5_moe(ModelConfig& out) {
  out.architecture = "Ernie4_5_MoeForCausalLM";
  out.moe.correction_bias = true;
  out.moe.normalise = true;
}

// Every `interval`-th layer from `first` to `last` is sparse.
void set_sparse_range(int64_t first, int64_t last, int64_t interval, MoeConfig& moe) {
  for (size_t i = 0; i < moe.sparse_layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    moe.sparse_layers[i] = layer >= first && layer <= last && (layer + 1) % interval == 0;
  }
}

}  // namespace

Result<ModelConfig> read_ernie4_5_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  const int64_t head_dim = reader.mentions("head_dim") ? 0 : 128;  // null: what follows from the hidden size
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 2,
                                                               .head_dim = head_dim,
                                                               .max_position = 131072,
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = 5e5,
                                                               .tie_word_embeddings = true}));
  out.architecture = "Ernie4_5ForCausalLM";
  QUIRE_RETURN_IF_ERROR(set_biases(reader, out));
  out.rope.interleaved = true;
  return out;
}

Result<ModelConfig> read_ernie4_5_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  out.architecture = "Ernie4_5ForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

Result<ModelConfig> read_ernie4_5_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 4,
                                                               .max_position = 131072,
                                                               .norm_eps = 1e-5,
                                                               .rope_theta = 5e5,
                                                               .tie_word_embeddings = true}));
  QUIRE_RETURN_IF_ERROR(set_biases(reader, out));
  out.rope.interleaved = true;
  QUIRE_ASSIGN_OR_RETURN(const int64_t experts, reader.integer_or("moe_num_experts", 64, 1, kMostExperts));
  QUIRE_ASSIGN_OR_RETURN(const int64_t chosen, reader.integer_or("moe_k", std::min<int64_t>(6, experts), 1, experts));
  QUIRE_ASSIGN_OR_RETURN(
      out.moe,
      read_moe(
          config, out,
          {.num_experts = experts, .experts_per_token = chosen, .size_key = "moe_intermediate_size", .size = 1536}));
  QUIRE_ASSIGN_OR_RETURN(const int64_t shared, reader.integer_or("moe_num_shared_experts", 2, 0, 1 << 16));
  out.moe.shared_intermediate_size = shared * out.moe.intermediate_size;
  QUIRE_ASSIGN_OR_RETURN(const int64_t first, reader.integer_or("moe_layer_start_index", 1, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t last, reader.integer_or("moe_layer_end_index", -1, -1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t interval, reader.integer_or("moe_layer_interval", 1, 1, 1 << 20));
  set_sparse_range(first, last == -1 ? out.num_layers : last, interval, out.moe);
  set_ernie4_5_moe(out);
  return out;
}

Result<ModelConfig> read_ernie4_5_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  QUIRE_ASSIGN_OR_RETURN(const int64_t shared, reader.integer_or("expert_shared_count", 0, 0, 1 << 16));
  out.moe.shared_intermediate_size = shared * out.moe.intermediate_size;
  QUIRE_ASSIGN_OR_RETURN(const int64_t first, reader.integer_or("leading_dense_block_count", 1, 0, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t interval, reader.integer_or("interleave_moe_layer_step", 1, 1, 1 << 20));
  set_sparse_range(first, out.num_layers, interval, out.moe);
  set_ernie4_5_moe(out);
  return out;
}

Result<std::unique_ptr<Model>> build_ernie4_5_moe(const ModelConfig& config, int64_t num_positions,
                                                  nn::Loader& loader) {
  // Its layer that predicts further tokens is left alone.
  return build_decoder({.feed_forward = sparse_or_dense, .head_bias = config.mlp_bias, .others = {"model.mtp_"}},
                       config, num_positions, loader);
}

}  // namespace quire::models
