// OLMoE (Muennighoff et al., 2024): experts in every layer, norms of whole queries and keys. FlexOlmo (Shi et al.,
// 2025): the same with OLMo 2's norms after the blocks.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_olmoe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_olmoe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_flex_olmo_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_flex_olmo(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_olmoe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOlmoeFamily{read_olmoe_config, build_olmoe, read_olmoe_gguf};
inline constexpr Family kFlexOlmoFamily{read_flex_olmo_config, build_flex_olmo};

}  // namespace quire::models
