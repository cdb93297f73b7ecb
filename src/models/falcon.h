// Falcon (Almazrouei et al., 2023): layer norms, blocks side by side, one head of keys (7B) or some (40B, 180B, 11B); a
// projection has each group's queries, key and value beside each other.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_falcon_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_falcon_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_falcon(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kFalconFamily{read_falcon_config, build_falcon, read_falcon_gguf};

}  // namespace quire::models
