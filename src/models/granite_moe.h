// Granite 3 with experts (IBM, 2024): Granite whose feed-forward blocks are mixtures.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_granite_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_granite_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_granite_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGraniteMoeFamily{read_granite_moe_config, build_granite_moe, read_granite_moe_gguf};

}  // namespace quire::models
