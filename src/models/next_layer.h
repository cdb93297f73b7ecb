// Layers that predict the tokens after the next, which some checkpoints have beside their model's own (DeepSeek-AI,
// "DeepSeek-V3 technical report", 2024, section 2.2): the first of them as a DraftHead over that model.
#pragma once

#include "models/model.h"

namespace quire::models {

// Errors: those of the model's configuration; invalid_argument for one without such layers; unimplemented for an
// architecture of which they are not read.
Result<ModelConfig> read_next_layer_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_next_layer_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_next_layer(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kNextLayerFamily{read_next_layer_config, build_next_layer, read_next_layer_gguf};

}  // namespace quire::models
