// Llama 1 to 3 (Touvron et al., 2023; Grattafiori et al., 2024) and what shares its shape, SmolLM2
// among them.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_llama_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_llama_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_llama(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kLlamaFamily{read_llama_config, build_llama, read_llama_gguf};

}  // namespace quire::models
