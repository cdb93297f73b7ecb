#include "models/granite.h"

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {

Result<ModelConfig> read_granite_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation, {}));
  out.architecture = "GraniteForCausalLM";
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(out.mlp_bias, reader.boolean_or("mlp_bias", false));
  QUIRE_ASSIGN_OR_RETURN(out.attention_scale, reader.number_or("attention_multiplier", 1.0));
  QUIRE_ASSIGN_OR_RETURN(out.embedding_scale, reader.number_or("embedding_multiplier", 1.0));
  QUIRE_ASSIGN_OR_RETURN(out.residual_scale, reader.number_or("residual_multiplier", 1.0));
  QUIRE_ASSIGN_OR_RETURN(const double logits_divisor, reader.number_or("logits_scaling", 1.0));
  if (logits_divisor == 0) return invalid_argument("config: logits_scaling is 0, expected another number");
  out.logits_scale = 1.0 / logits_divisor;
  return out;
}

Result<ModelConfig> read_granite_gguf_numbers(const GgufReader& reader, const GgufDecoder& decoder) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader, decoder));
  QUIRE_ASSIGN_OR_RETURN(out.attention_scale, reader.number_or("attention.scale", 1.0));
  QUIRE_ASSIGN_OR_RETURN(out.embedding_scale, reader.number_or("embedding_scale", 1.0));
  QUIRE_ASSIGN_OR_RETURN(out.residual_scale, reader.number_or("residual_scale", 1.0));
  QUIRE_ASSIGN_OR_RETURN(const double logits_divisor, reader.number_or("logit_scale", 1.0));
  if (logits_divisor == 0) {
    return invalid_argument("metadata \"{}\" is 0, expected another number", reader.full("logit_scale"));
  }
  out.logits_scale = 1.0 / logits_divisor;
  return out;
}

Result<ModelConfig> read_granite_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_granite_gguf_numbers(reader, {.interleaved = true}));
  out.architecture = "GraniteForCausalLM";
  out.mlp_bias = reader.has_tensor_that_ends_with(".mlp.up_proj.bias");
  return out;
}

}  // namespace quire::models
