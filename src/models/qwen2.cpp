#include "models/qwen2.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

void set_qwen2(ModelConfig& out) {
  out.architecture = "Qwen2ForCausalLM";
  out.attention_bias = true;
  out.attention_output_bias = false;
}

}  // namespace

Status read_qwen_windows(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const bool use_window, reader.boolean_or("use_sliding_window", false));
  QUIRE_ASSIGN_OR_RETURN(const int64_t full_layers, reader.integer_or("max_window_layers", 28, 0, 1 << 20));
  if (!use_window) {
    // Types of layers that are neither are still refused.
    return reader.has("layer_types") ? read_layer_windows(
                                           config, 0, [](int32_t) { return false; }, out)
                                     : Status();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config, 4096));
  if (!window) return {};
  return read_layer_windows(
      config, *window, [&](int32_t layer) { return layer >= full_layers; }, out);
}

Result<ModelConfig> read_qwen2_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_decoder_config(config, generation, {.num_kv_heads = 32, .max_position = 32768}));
  set_qwen2(out);
  QUIRE_RETURN_IF_ERROR(read_qwen_windows(config, out));
  return out;
}

Result<ModelConfig> read_qwen2_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(GgufReader(checkpoint)));
  set_qwen2(out);
  return out;
}

}  // namespace quire::models
