// Nemotron 4 and Minitron (Parmar et al., 2024): layer norms whose weights are stored around 0, blocks as AFM's, half
// of a head rotates.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_nemotron_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_nemotron_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_nemotron(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kNemotronFamily{read_nemotron_config, build_nemotron, read_nemotron_gguf};

}  // namespace quire::models
