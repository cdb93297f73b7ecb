// Mixtral (Jiang et al., 2024): Mistral with experts in place of the feed-forward block.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_mixtral_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_mixtral_gguf(const checkpoint::Checkpoint& checkpoint);
// Any decoder of Llama's shape whose feed-forward blocks are sparse where its MoeConfig says so.
Result<std::unique_ptr<Model>> build_mixtral(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kMixtralFamily{read_mixtral_config, build_mixtral, read_mixtral_gguf};

}  // namespace quire::models
