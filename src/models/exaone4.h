// EXAONE 4 (LG AI Research, 2025): norms after the blocks alone and of the heads of queries and keys; where layers have
// windows those that have none see no positions. K-EXAONE (2026): the same with norms before the blocks, and experts.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_exaone4_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_exaone4_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_exaone_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_exaone_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_exaone_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_exaone4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kExaone4Family{read_exaone4_config, build_exaone4, read_exaone4_gguf};
inline constexpr Family kExaoneMoeFamily{read_exaone_moe_config, build_exaone_moe, read_exaone_moe_gguf};

}  // namespace quire::models
