#include "models/mistral.h"

#include "checkpoint/text_quote.h"
#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/deepseek.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_mistral_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 8, .max_position = 131072}));
  out.architecture = "MistralForCausalLM";
  out.attention_bias = out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  if (window || ConfigReader(config).has("layer_types")) {
    QUIRE_RETURN_IF_ERROR(read_layer_windows(
        config, window.value_or(0), [](int32_t) { return true; }, out));
  }
  return out;
}

Result<ModelConfig> read_ministral3_config(const boost::json::object& config, const boost::json::object& generation) {
  boost::json::object complete = config;
  if (!ConfigReader(config).has("rope_parameters") && !ConfigReader(config).has("rope_scaling")) {
    complete["rope_parameters"] = {
        {"rope_type", "yarn"},        {"rope_theta", 1e6}, {"factor", 16.0},
        {"mscale_all_dim", 1.0},      {"mscale", 1.0},     {"original_max_position_embeddings", 16384},
        {"llama_4_scaling_beta", 0.1}};
  }
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(
          complete, generation,
          {.num_kv_heads = 8, .head_dim = 128, .max_position = 262144, .norm_eps = 1e-5, .rope_theta = 1e6}));
  out.architecture = "Ministral3ForCausalLM";
  out.attention_bias = out.attention_output_bias = false;
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  if (window) out.layer_windows.assign(static_cast<size_t>(out.num_layers), *window);
  QUIRE_RETURN_IF_ERROR(read_query_growth(complete, out));
  return out;
}

// The converter of Mistral 3 and Ministral 3, whose text models are one architecture there.
Result<ModelConfig> read_ministral3_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  out.architecture = "Ministral3ForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_gguf_query_growth(reader, out));
  return out;
}

Result<ModelConfig> read_mistral3_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_config(whole));
  QUIRE_ASSIGN_OR_RETURN(const std::string type, ConfigReader(config).text_or("model_type", "mistral"));
  if (type == "mistral") return read_mistral_config(config, generation);
  if (type == "ministral3") return read_ministral3_config(config, generation);
  if (type == "mistral4") return read_mistral4_config(config, generation);
  return unimplemented("config: a text model of type {} is not supported yet; supported: mistral, ministral3, mistral4",
                       checkpoint::in_quotes(type));
}

Result<std::unique_ptr<Model>> build_mistral3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape = config.latent.kv_rank > 0 ? deepseek_shape() : DecoderShape{};
  find_text_model(loader, shape);
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
