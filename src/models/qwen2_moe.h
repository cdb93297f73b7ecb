// Qwen1.5-MoE and Qwen2-MoE (Yang et al., 2024): Qwen2 with many small experts and a gated one that all tokens take.
#pragma once

#include "models/mixtral.h"

namespace quire::models {

Result<ModelConfig> read_qwen2_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen2_moe_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kQwen2MoeFamily{read_qwen2_moe_config, build_mixtral, read_qwen2_moe_gguf};

}  // namespace quire::models
