// Command R and Command A (Cohere, 2024 and 2025): both blocks side by side behind one layer norm without a bias, tied
// embeddings. Command R+ has layer norms of the heads of queries and keys, too. The second generation has windows, and
// its layers without one see no positions.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_cohere_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_cohere_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_cohere2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_cohere2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_cohere(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kCohereFamily{read_cohere_config, build_cohere, read_cohere_gguf};
inline constexpr Family kCohere2Family{read_cohere2_config, build_cohere, read_cohere2_gguf};

}  // namespace quire::models
