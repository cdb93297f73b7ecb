// Phi-1 to 2 (Li et al., 2023): both blocks side by side behind one layer norm, biases everywhere, the head included.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_phi_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_phi_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_phi(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kPhiFamily{read_phi_config, build_phi, read_phi_gguf};

}  // namespace quire::models
