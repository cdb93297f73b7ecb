// OLMoE (Muennighoff et al., 2024): experts in every layer, norms of whole queries and keys.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_olmoe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_olmoe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_olmoe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOlmoeFamily{read_olmoe_config, build_olmoe, read_olmoe_gguf};

}  // namespace quire::models
