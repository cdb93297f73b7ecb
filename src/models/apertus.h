// Apertus (Swiss AI, 2025): norms of the heads of queries and keys, and feed-forward blocks without a gate whose
// activation each layer has learned.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_apertus_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_apertus_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_apertus(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kApertusFamily{read_apertus_config, build_apertus, read_apertus_gguf};

}  // namespace quire::models
