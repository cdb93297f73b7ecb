// OLMo 2 (OLMo Team, 2024): norms after the blocks, none before; norms of whole queries and keys. OLMo 3 (2025) is the
// same with windows on three of four layers, whose rope is never stretched.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_olmo2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_olmo3_config(const boost::json::object& config, const boost::json::object& generation);
// Of either: GGUF calls both "olmo2".
Result<ModelConfig> read_olmo2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_olmo2(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOlmo2Family{read_olmo2_config, build_olmo2, read_olmo2_gguf};
inline constexpr Family kOlmo3Family{read_olmo3_config, build_olmo2, read_olmo2_gguf};

}  // namespace quire::models
