// Qwen3 (Yang et al., 2025): Qwen2 with norms of the heads of queries and keys in place of biases.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_qwen3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_qwen3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kQwen3Family{read_qwen3_config, build_qwen3, read_qwen3_gguf};

}  // namespace quire::models
