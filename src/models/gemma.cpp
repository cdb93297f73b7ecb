#include "models/gemma.h"

#include <cmath>

#include "models/config_reader.h"
#include "models/gguf_reader.h"

namespace quire::models {
namespace {

void set_gemma(ModelConfig& out) {
  out.architecture = "GemmaForCausalLM";
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
}

}  // namespace

Result<ModelConfig> read_gemma1_config(const boost::json::object& config, const boost::json::object& generation) {
  const ConfigReader reader(config);
  // The first files say "gelu" under the older key and mean its approximation, as they were trained.
  QUIRE_ASSIGN_OR_RETURN(std::string activation, reader.text_or("hidden_act", "gelu_pytorch_tanh"));
  if (activation == "gelu") activation = "gelu_pytorch_tanh";
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 16,
                                                               .head_dim = 256,
                                                               .max_position = 8192,
                                                               .tie_word_embeddings = true,
                                                               .activation_key = "hidden_activation",
                                                               .activation = activation}));
  set_gemma(out);
  out.norm_weight_offset = 1;  // stored around 0
  QUIRE_ASSIGN_OR_RETURN(const bool both_ways, reader.boolean_or("use_bidirectional_attention", false));
  if (both_ways) return unimplemented("config: use_bidirectional_attention is true, supported: false");
  return out;
}

Result<ModelConfig> read_gemma1_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out,
                         read_gguf_decoder(GgufReader(checkpoint), {.activation = Activation::kGeluTanh}));
  set_gemma(out);  // converters add the 1 to the norms
  return out;
}

}  // namespace quire::models
