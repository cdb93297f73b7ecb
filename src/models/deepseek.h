// DeepSeek V2 and V3 (DeepSeek-AI, 2024): multi-head latent attention; after the first dense layers many small experts
// with shared ones.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_deepseek_v2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_deepseek_v3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_deepseek_v2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_deepseek_v3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_deepseek(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kDeepseekV2Family{read_deepseek_v2_config, build_deepseek, read_deepseek_v2_gguf};
inline constexpr Family kDeepseekV3Family{read_deepseek_v3_config, build_deepseek, read_deepseek_v3_gguf};

}  // namespace quire::models
