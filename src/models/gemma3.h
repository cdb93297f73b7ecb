// Gemma 3 (Gemma Team, 2025), the text model: Gemma 2 with norms of queries and keys in place of the scores' cap, and a
// rope of their own for the layers with a window.
#pragma once

#include "models/model.h"

namespace quire::models {

// Gemma3ForCausalLM, or the text part of Gemma3ForConditionalGeneration.
Result<ModelConfig> read_gemma3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gemma3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gemma3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGemma3Family{read_gemma3_config, build_gemma3, read_gemma3_gguf};

}  // namespace quire::models
