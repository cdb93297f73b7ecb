#include "models/minimax_m2.h"

#include "models/config_reader.h"
#include "models/decoder.h"
#include "models/gguf_reader.h"
#include "models/moe_family.h"

namespace quire::models {
namespace {

void set_minimax_m2(ModelConfig& out) {
  out.architecture = "MiniMaxM2ForCausalLM";
  set_sigmoid_router(out.moe);
  out.moe.normalise = true;
}

}  // namespace

Result<ModelConfig> read_minimax_m2_config(const boost::json::object& config, const boost::json::object& generation) {
  constexpr int64_t kHeadDim = 128;
  const ConfigReader reader(config);
  QUIRE_ASSIGN_OR_RETURN(const int64_t head_dim, reader.integer_or("head_dim", kHeadDim, 1, kMostHeadDim));
  QUIRE_ASSIGN_OR_RETURN(const int64_t rotary_dim, reader.integer_or("rotary_dim", head_dim, 1, head_dim));
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_decoder_config(config, generation,
                                                              {.num_kv_heads = 8,
                                                               .head_dim = head_dim,
                                                               .max_position = 196608,
                                                               .rope_theta = 5e6,
                                                               .rotary_share = static_cast<double>(rotary_dim) /
                                                                               static_cast<double>(head_dim),
                                                               .partial_rotary = true}));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_moe(config, out, {.num_experts = 256, .experts_per_token = 8, .size = 1536}));
  set_minimax_m2(out);
  return out;
}

Result<ModelConfig> read_minimax_m2_gguf(const checkpoint::Checkpoint& checkpoint) {
  const GgufReader reader(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(ModelConfig out, read_gguf_decoder(reader));
  QUIRE_ASSIGN_OR_RETURN(out.moe, read_gguf_moe(reader, out, "expert_feed_forward_length"));
  set_minimax_m2(out);
  return out;
}

Result<std::unique_ptr<Model>> build_minimax_m2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader) {
  return build_decoder({.qk_norm = nn::QkNorm::kProjection, .feed_forward = sparse_or_dense}, config, num_positions,
                       loader);
}

}  // namespace quire::models
