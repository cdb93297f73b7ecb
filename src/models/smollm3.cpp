#include "models/smollm3.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr int64_t kInterval = 4;  // every so many-th layer sees no positions, where nothing else is said

void set_unrotated_layers(int64_t interval, ModelConfig& out) {
  for (int64_t layer = 0; layer < out.num_layers; ++layer) out.unrotated_layers.push_back((layer + 1) % interval == 0);
}

// "no_rope_layers" has a 1 for each layer that rotates.
Status read_unrotated_layers(const ConfigReader& reader, ModelConfig& out) {
  if (!reader.has("no_rope_layers")) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t interval, reader.integer_or("no_rope_layer_interval", kInterval, 1, 1 << 20));
    set_unrotated_layers(interval, out);
    return {};
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<double> rotates, reader.numbers("no_rope_layers"));
  if (std::ssize(rotates) < out.num_layers) {
    return invalid_argument("config: no_rope_layers has {} entries, expected one for each of the {} layers",
                            rotates.size(), out.num_layers);
  }
  for (int32_t layer = 0; layer < out.num_layers; ++layer)
    out.unrotated_layers.push_back(rotates[static_cast<size_t>(layer)] == 0);
  return {};
}

}  // namespace

Result<ModelConfig> read_smollm3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation,
                          {.num_kv_heads = 4, .max_position = 32768, .rope_theta = 2e6, .tie_word_embeddings = true}));
  out.architecture = "SmolLM3ForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_RETURN_IF_ERROR(read_unrotated_layers(reader, out));
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
