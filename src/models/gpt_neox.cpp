#include "models/gpt_neox.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/plain_mlp.h"

namespace quire::models {
namespace {

std::unique_ptr<nn::SelfAttention> build_neox_attention(nn::Loader& loader, const std::string& prefix,
                                                        const ModelConfig& config, int32_t layer) {
  return std::make_unique<nn::Attention>(
      loader, prefix + "attention", attention_config({}, config, layer),
      std::vector<nn::Linear::Part>{
          {prefix + "attention.query_key_value", 3 * config.hidden_size, config.attention_bias}},
      nn::Linear::Part{prefix + "attention.dense", config.hidden_size, config.attention_output_bias});
}

std::unique_ptr<nn::FeedForward> build_neox_mlp(nn::Loader& loader, const std::string& prefix,
                                                const ModelConfig& config, int32_t /*layer*/) {
  return plain_mlp(loader, prefix, config, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h");
}

Status set_neox(ModelConfig& out) {
  out.architecture = "GPTNeoXForCausalLM";
  out.mlp_bias = true;
  if (out.num_kv_heads != out.num_heads) {
    return unimplemented("{} heads of keys for {} of queries; supported of GPT-NeoX: as many", out.num_kv_heads,
                         out.num_heads);
  }
  return check_even_heads(out);
}

}  // namespace

Result<ModelConfig> read_gpt_neox_config(const boost::json::object& config, const boost::json::object& generation) {
  static constexpr KeyName kNames[] = {{"rotary_pct", "partial_rotary_factor"}, {"rotary_emb_base", "rope_theta"}};
  boost::json::object usual = with_usual_keys(config, kNames);
  usual.erase("num_key_value_heads");  // which the reference does not know
  usual.erase("head_dim");
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(usual, generation,
                                                              {.norm_eps_key = "layer_norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rotary_share = 0.25,
                                                               .partial_rotary = true,
                                                               .attention_bias = true,
                                                               .activation = "gelu"}));
  QUIRE_RETURN_IF_ERROR(set_neox(out));
  out.grouped_qkv = true;
  QUIRE_ASSIGN_OR_RETURN(out.parallel_blocks, ConfigReader(config).boolean_or("use_parallel_residual", true));
  return out;
}

Result<ModelConfig> read_gpt_neox_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .activation = Activation::kGelu}));
  QUIRE_RETURN_IF_ERROR(set_neox(out));
  out.attention_bias = out.attention_output_bias = reader.has_tensor_that_ends_with(".attention.query_key_value.bias");
  out.tie_word_embeddings = !reader.has_tensor("embed_out.weight");
  QUIRE_ASSIGN_OR_RETURN(out.parallel_blocks, reader.boolean_or("use_parallel_residual", true));
  return out;
}

Result<std::unique_ptr<Model>> build_gpt_neox(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.norm = nn::NormKind::kLayer,
                        .after_layers = "final_layer_norm",
                        .parallel = config.parallel_blocks,
                        .feed_forward = build_neox_mlp,
                        .attention = build_neox_attention,
                        .root = "gpt_neox",
                        .embeddings = "embed_in",
                        .head = loader.has_weight("lm_head.weight") ? "lm_head" : "embed_out",
                        .buffers = {".attention.bias", ".attention.masked_bias"}},
                       config, num_positions, loader);
}

}  // namespace quire::models
