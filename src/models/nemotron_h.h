// Nemotron-H (NVIDIA, 2025): each layer is one block behind one norm, of Mamba 2, of attention without positions, a
// plain feed-forward block, or experts without gates.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_nemotron_h_config(const boost::json::object& config, const boost::json::object& generation);
// GGUF's nemotron_h and nemotron_h_moe.
Result<ModelConfig> read_nemotron_h_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_nemotron_h(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kNemotronHFamily{read_nemotron_h_config, build_nemotron_h, read_nemotron_h_gguf};

}  // namespace quire::models
