#include "models/smollm3.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr int64_t kInterval = 4;  // every so many-th layer sees no positions, where nothing else is said

}  // namespace

Result<ModelConfig> read_smollm3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation,
                          {.num_kv_heads = 4, .max_position = 32768, .rope_theta = 2e6, .tie_word_embeddings = true}));
  out.architecture = "SmolLM3ForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_RETURN_IF_ERROR(read_unrotated_layers(reader, kInterval, out));
  QUIRE_ASSIGN_OR_RETURN(const bool use_window, reader.boolean_or("use_sliding_window", false));
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  const auto has_window = [&](int32_t layer) { return bool{out.unrotated_layers[static_cast<size_t>(layer)]}; };
  QUIRE_RETURN_IF_ERROR(read_layer_windows(config, use_window ? window.value_or(0) : 0, has_window, out));
  return out;
}

Result<ModelConfig> read_smollm3_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(GgufReader(checkpoint), {.interleaved = true}));
  out.architecture = "SmolLM3ForCausalLM";
  set_unrotated_layers(kInterval, out);  // the metadata does not say it
  return out;
}

Result<std::unique_ptr<Model>> build_smollm3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({}, config, num_positions, loader);
}

}  // namespace quire::models
