// Qwen3-Next (Qwen Team, 2025): of four layers three have a gated delta net and one gated attention; experts, and one
// that all tokens take. Qwen3.5 (Qwen Team, 2026) is the same with dense blocks or experts, its projections apart, as
// the text model of one that sees images.
#pragma once

#include "models/decoder.h"

namespace quire::models {

Result<ModelConfig> read_qwen3_next_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_5_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_5_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_next_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_qwen3_5_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_qwen3_5_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_qwen3_next(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

// What its layers with attention are made of.
DecoderShape gated_attention_shape(const ModelConfig& config);

// Sizes of layers with a gated delta net; `usual`: where the configuration does not say. Also of other families.
// Errors: unimplemented for an activation other than silu, which the convolution has, too.
Status read_delta_net(const boost::json::object& config, const DeltaNetConfig& usual, ModelConfig& out);

inline constexpr Family kQwen3NextFamily{read_qwen3_next_config, build_qwen3_next, read_qwen3_next_gguf};
inline constexpr Family kQwen35Family{read_qwen3_5_config, build_qwen3_next, read_qwen3_5_gguf};
inline constexpr Family kQwen35MoeFamily{read_qwen3_5_moe_config, build_qwen3_next, read_qwen3_5_moe_gguf};

}  // namespace quire::models
