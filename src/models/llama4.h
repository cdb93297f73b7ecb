// Llama 4 (Meta, 2025): of four layers one sees no positions and scales its queries by theirs; the others see the
// tokens of their chunk, norm rotated queries and keys, and bound the context to a chunk here, within which that is all
// tokens. Experts whose inputs are weighted, and a shared one. It may be the text model of a larger one.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_llama4_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_llama4_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_llama4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kLlama4Family{read_llama4_config, build_llama4, read_llama4_gguf};

}  // namespace quire::models
