#include "models/olmo.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

constexpr double kOlmoNormEps = 1e-5;  // whatever the file says

void set_olmo(ModelConfig& out) {
  out.architecture = "OlmoForCausalLM";
  out.norm_eps = kOlmoNormEps;
}

}  // namespace

Status read_qkv_limit(const boost::json::object& config, ModelConfig& out) {
  const ConfigReader reader(config);
  if (!reader.has("clip_qkv")) return {};
  QUIRE_ASSIGN_OR_RETURN(out.qkv_limit, reader.number_or("clip_qkv", 0));
  if (out.qkv_limit > 0) return {};
  return invalid_argument("config: clip_qkv is {}, expected more than 0 or null", out.qkv_limit);
}

Status read_gguf_qkv_limit(const checkpoint::Checkpoint& checkpoint, ModelConfig& out) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(out.qkv_limit, reader.number_or("attention.clamp_kqv", 0));
  if (out.qkv_limit >= 0) return {};
  return invalid_argument("metadata \"{}\" is {}, expected at least 0", reader.full("attention.clamp_kqv"),
                          out.qkv_limit);
}

Result<ModelConfig> read_olmo_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {}));
  set_olmo(out);
  QUIRE_RETURN_IF_ERROR(read_qkv_limit(config, out));
  return out;
}

Result<ModelConfig> read_olmo_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                     .interleaved = true}));
  set_olmo(out);
  QUIRE_RETURN_IF_ERROR(read_gguf_qkv_limit(checkpoint, out));
  return out;
}

Result<std::unique_ptr<Model>> build_olmo(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.norm = nn::NormKind::kLayerWithoutParameters}, config, num_positions, loader);
}

}  // namespace quire::models
