#include "models/mixtral.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

constexpr int64_t kExpertsPerToken = 2;  // where the configuration does not say

void set_mixtral(ModelConfig& out) {
  out.architecture = "MixtralForCausalLM";
  out.attention_bias = false;
  out.attention_output_bias = false;
}

}  // namespace

Result<ModelConfig> read_mixtral_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(
      ModelConfig out,
      read_decoder_config(config, generation,
                          {.num_kv_heads = 8, .max_position = 131072, .norm_eps = 1e-5, .rope_theta = 1e6}));
  set_mixtral(out);
  QUIRE_ASSIGN_OR_RETURN(const std::optional<int32_t> window, read_window(config));
  if (window) out.layer_windows.assign(static_cast<size_t>(out.num_layers), *window);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 8, .experts_per_token = kExpertsPerToken}));
  out.moe.normalise = true;
  return out;
}

Result<ModelConfig> read_mixtral_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.interleaved = true}));
  set_mixtral(out);
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "feed_forward_length", kExpertsPerToken));
  out.moe.normalise = true;
  return out;
}

Result<std::unique_ptr<Model>> build_mixtral(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.feed_forward = sparse_or_dense}, config, num_positions, loader);
}

}  // namespace quire::models
