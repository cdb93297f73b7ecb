// Qwen3-MoE (Yang et al., 2025): Qwen3 with experts and none that all tokens take.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_qwen3_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_qwen3_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kQwen3MoeFamily{read_qwen3_moe_config, build_qwen3_moe, read_qwen3_moe_gguf};

}  // namespace quire::models
