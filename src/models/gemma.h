// Gemma (Gemma Team, 2024): Llama with multiplied embeddings and norms whose weights are stored around 0.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_gemma1_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gemma1_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kGemmaFamily{read_gemma1_config, build_llama, read_gemma1_gguf};

}  // namespace quire::models
