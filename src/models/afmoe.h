// Trinity (Arcee AI, 2025): norms on both sides of the blocks, gates of attention's output, of four layers three with a
// window and positions and one with neither; sigmoid routing with a correction and shared experts.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_afmoe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_afmoe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_afmoe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kAfmoeFamily{read_afmoe_config, build_afmoe, read_afmoe_gguf};

}  // namespace quire::models
