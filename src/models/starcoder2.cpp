#include "models/starcoder2.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "nn/mlp.h"

namespace quire::models {
namespace {

std::unique_ptr<nn::FeedForward> build_starcoder2_mlp(nn::Loader& loader, const std::string& prefix,
                                                      const ModelConfig& config, int32_t /*layer*/) {
  return std::make_unique<nn::PlainMlp>(
      loader, nn::Linear::Part{prefix + "mlp.c_fc", config.intermediate_size, config.mlp_bias},
      nn::Linear::Part{prefix + "mlp.c_proj", config.hidden_size, config.mlp_bias}, config.activation);
}

}  // namespace

Result<ModelConfig> read_starcoder2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 2,
                                                               .max_position = 4096,
                                                               .norm_eps_key = "norm_epsilon",
                                                               .norm_eps = 1e-5,
                                                               .tie_word_embeddings = true,
                                                               .activation = "gelu_pytorch_tanh"}));
  out.architecture = "Starcoder2ForCausalLM";
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, ConfigReader(config).boolean_or("use_bias", true));
  out.attention_bias = out.attention_output_bias = out.mlp_bias;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  set_layer_windows(
      window.value_or(0), [](int32_t) { return true; }, out);
  return out;
}

Result<ModelConfig> read_starcoder2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .activation = Activation::kGeluTanh}));
  out.architecture = "Starcoder2ForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.c_fc.bias");
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, reader.window());
  if (window)
    set_layer_windows(
        *window, [](int32_t) { return true; }, out);
  return out;
}

Result<std::unique_ptr<Model>> build_starcoder2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.norm = nn::NormKind::kLayer, .feed_forward = build_starcoder2_mlp}, config, num_positions,
                       loader);
}

}  // namespace quire::models
