// Gemma 4 (Gemma Team, 2026): Gemma 3 with larger heads in the layers without a window, normalised values and layers
// that scale the stream; by size of the model with values that are the keys' projection, inputs of each layer from a
// table of their own, last layers that read earlier ones' caches, or experts beside the dense block.
#pragma once

#include "models/model.h"

namespace quire::models {

// Gemma4ForCausalLM, or the text part of Gemma4ForConditionalGeneration.
Result<ModelConfig> read_gemma4_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gemma4_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gemma4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGemma4Family{read_gemma4_config, build_gemma4, read_gemma4_gguf};

}  // namespace quire::models
