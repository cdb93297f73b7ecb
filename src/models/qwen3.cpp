#include "models/qwen3.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/qwen2.h"

namespace quire::models {

Result<ModelConfig> read_qwen3_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation, {.num_kv_heads = 32, .head_dim = 128, .max_position = 32768}));
  out.architecture = "Qwen3ForCausalLM";
  QUIRE_RETURN_IF_ERROR(read_qwen_windows(config, out));
  return out;
}

Result<ModelConfig> read_qwen3_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(GgufReader(checkpoint)));
  out.architecture = "Qwen3ForCausalLM";
  return out;
}

Result<std::unique_ptr<Model>> build_qwen3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.qk_norm = nn::QkNorm::kHead}, config, num_positions, loader);
}

}  // namespace quire::models
