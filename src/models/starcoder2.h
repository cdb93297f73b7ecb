// StarCoder2 (Lozhkov et al., 2024): layer norms, biases and a plain feed-forward block.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_starcoder2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_starcoder2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_starcoder2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kStarcoder2Family{read_starcoder2_config, build_starcoder2, read_starcoder2_gguf};

}  // namespace quire::models
