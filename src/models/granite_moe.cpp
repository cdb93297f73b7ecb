#include "models/granite_moe.h"

#include "models/decoder.h"
#include "models/granite.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

void set_granite_moe(ModelConfig& out) {
  out.architecture = "GraniteMoeForCausalLM";
  out.mlp_bias = false;
  out.moe.score = RouterScore::kSoftmaxOfChosen;
}

}  // namespace

Result<ModelConfig> read_granite_moe_config(const boost::json::object& config, const boost::json::object& generation) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_granite_config(config, generation));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 8, .experts_per_token = 2}));
  set_granite_moe(out);
  return out;
}

Result<ModelConfig> read_granite_moe_gguf(const checkpoint::Checkpoint& checkpoint) {
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_granite_gguf(checkpoint));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(GgufReader(checkpoint), out, "feed_forward_length"));
  set_granite_moe(out);
  return out;
}

Result<std::unique_ptr<Model>> build_granite_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.feed_forward = sparse_or_dense}, config, num_positions, loader);
}

}  // namespace quire::models
