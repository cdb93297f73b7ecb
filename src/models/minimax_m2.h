// MiniMax-M2 (MiniMax, 2025): Mixtral whose router is DeepSeek V3's; norms of whole queries and keys, of which a part
// of each head rotates.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_minimax_m2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_minimax_m2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_minimax_m2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kMinimaxM2Family{read_minimax_m2_config, build_minimax_m2, read_minimax_m2_gguf};

}  // namespace quire::models
