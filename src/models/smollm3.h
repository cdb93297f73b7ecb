// SmolLM3 (Hugging Face, 2025): Llama, every fourth of whose layers sees no positions (Yang et al., 2025).
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_smollm3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_smollm3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_smollm3(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kSmolLm3Family{read_smollm3_config, build_smollm3, read_smollm3_gguf};

}  // namespace quire::models
