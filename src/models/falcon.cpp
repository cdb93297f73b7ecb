#include "models/falcon.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/plain_mlp.h"

namespace quire::models {
namespace {

std::unique_ptr<nn::SelfAttention> build_falcon_attention(nn::Loader& loader, const std::string& prefix,
                                                          const ModelConfig& config, int32_t layer) {
  const int64_t rows = (int64_t{config.num_heads} + 2 * int64_t{config.num_kv_heads}) * config.head_dim;
  return std::make_unique<nn::Attention>(
      loader, prefix + "self_attention", attention_config({}, config, layer),
      std::vector<nn::Linear::Part>{{prefix + "self_attention.query_key_value", rows, config.attention_bias}},
      nn::Linear::Part{prefix + "self_attention.dense", config.hidden_size, config.attention_output_bias});
}

std::unique_ptr<nn::FeedForward> build_falcon_mlp(nn::Loader& loader, const std::string& prefix,
                                                  const ModelConfig& config, int32_t /*layer*/) {
  return plain_mlp(loader, prefix, config, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h");
}

// How many heads have keys, which depends on the generation.
Result<int64_t> read_key_heads(const ConfigReader& reader, bool is_new, int64_t heads) {
  QUIRE_ASSIGN_OR_RETURN(const bool one, reader.boolean_or("multi_query", true));
  if (one && !is_new) return 1;
  QUIRE_ASSIGN_OR_RETURN(const int64_t some, reader.integer_or("num_kv_heads", heads, 1, heads));
  if (is_new || some == heads) return some;
  return unimplemented("config: num_kv_heads is {} without new_decoder_architecture; supported then: as many as heads",
                       some);
}

// Where norms stand.
Status read_falcon_blocks(const ConfigReader& reader, bool is_new, ModelConfig& out) {
  QUIRE_ASSIGN_OR_RETURN(out.parallel_blocks, reader.boolean_or("parallel_attn", true));
  if (is_new && !out.parallel_blocks) {
    return unimplemented("config: parallel_attn is false with new_decoder_architecture; supported then: true");
  }
  if (!out.parallel_blocks) return {};
  QUIRE_ASSIGN_OR_RETURN(const int64_t norms, reader.integer_or("num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2));
  out.own_mlp_norm = norms == 2;
  if (!out.own_mlp_norm || is_new) return {};
  return unimplemented("config: num_ln_in_parallel_attn is 2 without new_decoder_architecture; supported then: 1");
}

}  // namespace

Result<ModelConfig> read_falcon_config(const boost::json::object& config, const boost::json::object& generation) {
  // The first releases' names.
  static constexpr KeyName kNames[] = {{"n_embed", "hidden_size"},
                                       {"n_head", "num_attention_heads"},
                                       {"n_layer", "num_hidden_layers"},
                                       {"n_head_kv", "num_kv_heads"}};
  boost::json::object usual = with_usual_keys(config, kNames);
  usual.erase("head_dim");  // which the reference does not know
  const ConfigReader reader(usual);
  QUIRE_ASSIGN_OR_RETURN(const bool alibi, reader.boolean_or("alibi", false));
  if (alibi) return unimplemented("config: alibi is true, which is not supported; supported: false");
  QUIRE_ASSIGN_OR_RETURN(const bool is_new, reader.boolean_or("new_decoder_architecture", false));
  QUIRE_ASSIGN_OR_RETURN(const int64_t hidden, reader.integer("hidden_size", 1, 1 << 20));
  QUIRE_ASSIGN_OR_RETURN(const int64_t heads, reader.integer("num_attention_heads", 1, 4096));
  QUIRE_ASSIGN_OR_RETURN(const int64_t kv_heads, read_key_heads(reader, is_new, heads));
  QUIRE_ASSIGN_OR_RETURN(usual["intermediate_size"], reader.integer_or("ffn_hidden_size", 4 * hidden, 1, 1 << 22));
  usual["num_key_value_heads"] = kv_heads;
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(usual, generation,
                                                              {.norm_eps_key = "layer_norm_epsilon",
                                                               .norm_eps = 1e-5,
                                                               .tie_word_embeddings = true,
                                                               .activation_key = "activation",
                                                               .activation = "gelu"}));
  out.architecture = "FalconForCausalLM";
  out.grouped_qkv = true;
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("bias", false));
  out.attention_bias = out.attention_output_bias = out.mlp_bias;
  QUIRE_RETURN_IF_ERROR(check_even_heads(out));
  QUIRE_RETURN_IF_ERROR(read_falcon_blocks(reader, is_new, out));
  return out;
}

Result<ModelConfig> read_falcon_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .activation = Activation::kGelu}));
  out.architecture = "FalconForCausalLM";
  QUIRE_RETURN_IF_ERROR(check_even_heads(out));
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.dense_h_to_4h.bias");
  out.attention_bias = out.attention_output_bias = out.mlp_bias;
  out.parallel_blocks = true;
  out.own_mlp_norm = reader.has_tensor_that_ends_with(".ln_attn.weight");
  return out;
}

Result<std::unique_ptr<Model>> build_falcon(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape{.norm = nn::NormKind::kLayer,
                     .after_layers = "ln_f",
                     .parallel = config.parallel_blocks,
                     .feed_forward = build_falcon_mlp,
                     .attention = build_falcon_attention,
                     .root = "transformer",
                     .embeddings = "word_embeddings",
                     .layers = "h"};
  if (config.own_mlp_norm) {
    // GGUF has one name for the only norm and for the feed-forward block's.
    const bool is_gguf = loader.has("transformer.h.0.input_layernorm.weight");
    shape.before_attention = "ln_attn";
    shape.before_mlp = is_gguf ? "input_layernorm" : "ln_mlp";
  } else if (config.parallel_blocks) {
    shape.before_mlp = "";
  }
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
