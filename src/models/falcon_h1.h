// Falcon-H1 (TII, 2025): every layer has Mamba 2 and attention side by side, and multipliers for what goes in and out.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_falcon_h1_config(const boost::json::object& config, const boost::json::object& generation);
// In files of llama.cpp's all multipliers are in the weights.
Result<ModelConfig> read_falcon_h1_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_falcon_h1(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kFalconH1Family{read_falcon_h1_config, build_falcon_h1, read_falcon_h1_gguf};

}  // namespace quire::models
