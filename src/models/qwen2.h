// Qwen2 and Qwen2.5 (Yang et al., 2024): Llama with biases on queries, keys and values, and windows on the upper layers
// where the configuration asks for them.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_qwen2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen2_gguf(const checkpoint::Checkpoint& checkpoint);

// "use_sliding_window", "sliding_window", "max_window_layers", "layer_types" of all Qwens.
Status read_qwen_windows(const boost::json::object& config, ModelConfig& out);

inline constexpr Family kQwen2Family{read_qwen2_config, build_llama, read_qwen2_gguf};

}  // namespace quire::models
