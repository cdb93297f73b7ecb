#include "models/mistral.h"

#include "checkpoint/text_quote.h"
#include "models/config_reader.h"
#include "models/decoder.h"

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

Result<ModelConfig> read_mistral3_config(const boost::json::object& whole, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(const boost::json::object config, text_config(whole));
  QUIRE_ASSIGN_OR_RETURN(const std::string type, ConfigReader(config).text_or("model_type", "mistral"));
  if (type != "mistral") {
    return unimplemented("config: a text model of type {} is not supported yet; supported: mistral",
                         checkpoint::in_quotes(type));
  }
  return read_mistral_config(config, generation);
}

Result<std::unique_ptr<Model>> build_mistral3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  DecoderShape shape;
  find_text_model(loader, shape);
  return build_decoder(shape, config, num_positions, loader);
}

}  // namespace quire::models
