#include "models/phi.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "nn/mlp.h"

namespace quire::models {
namespace {

std::unique_ptr<nn::FeedForward> build_phi_mlp(nn::Loader& loader, const std::string& prefix, const ModelConfig& config,
                                               int32_t /*layer*/) {
  return std::make_unique<nn::PlainMlp>(
      loader, nn::Linear::Part{prefix + "mlp.fc1", config.intermediate_size, /*bias=*/true},
      nn::Linear::Part{prefix + "mlp.fc2", config.hidden_size, /*bias=*/true}, config.activation);
}

void set_phi(ModelConfig& out) {
  out.architecture = "PhiForCausalLM";
  out.attention_bias = out.attention_output_bias = out.mlp_bias = true;
}

}  // namespace

Result<ModelConfig> read_phi_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.norm_eps_key = "layer_norm_eps",
                                                               .norm_eps = 1e-5,
                                                               .rotary_share = 0.5,
                                                               .partial_rotary = true,
                                                               .activation = "gelu_new"}));
  set_phi(out);
  QUIRE_ASSIGN_OR_RETURN(const bool norms_heads, ConfigReader(config).boolean_or("qk_layernorm", false));
  if (norms_heads) return unimplemented("config: qk_layernorm is true, supported: false");
  return out;
}

Result<ModelConfig> read_phi_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_gguf_decoder(GgufReader(checkpoint), {.norm_eps_key = "attention.layer_norm_epsilon",
                                                                    .activation = Activation::kGeluTanh}));
  set_phi(out);
  return out;
}

Result<std::unique_ptr<Model>> build_phi(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  const bool is_gguf = loader.has("model.norm.weight");
  return build_decoder({.norm = nn::NormKind::kLayer,
                        .before_mlp = "",
                        .after_layers = is_gguf ? "norm" : "final_layernorm",
                        .parallel = true,
                        .attention_output = "dense",
                        .feed_forward = build_phi_mlp,
                        .head_bias = true},
                       config, num_positions, loader);
}

}  // namespace quire::models
