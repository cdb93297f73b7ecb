// LFM2 (Liquid AI, 2025): most layers have a gated short convolution in the place of attention, the others attention
// with norms of the heads of queries and keys. LFM2-MoE has experts behind its first layers.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_lfm2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_lfm2_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_lfm2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_lfm2_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_lfm2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kLfm2Family{read_lfm2_config, build_lfm2, read_lfm2_gguf};
inline constexpr Family kLfm2MoeFamily{read_lfm2_moe_config, build_lfm2, read_lfm2_moe_gguf};

}  // namespace quire::models
