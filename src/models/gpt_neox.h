// GPT-NeoX and Pythia (Black et al., 2022; Biderman et al., 2023): layer norms, blocks side by side with a norm each, a
// quarter of a head rotates; a projection has each head's query, key and value beside each other.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_gpt_neox_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gpt_neox_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gpt_neox(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGptNeoxFamily{read_gpt_neox_config, build_gpt_neox, read_gpt_neox_gguf};

}  // namespace quire::models
