// Gemma 2 (Gemma Team, 2024): norms on both sides of the blocks, soft caps, every other layer with a window.
#pragma once

#include "models/config_reader.h"
#include "models/model.h"

namespace quire::models {

// What Gemma 2 and 3 have in common.
Result<ModelConfig> read_gemma_config(const boost::json::object& config, const boost::json::object& generation,
                                      int64_t default_max_position);
Result<ModelConfig> read_gemma2_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_gemma2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGemma2Family{read_gemma2_config, build_gemma2};

}  // namespace quire::models
