// Phi-3 and Phi-4 (Abdin et al., 2024): Llama with fused projections, longrope and a window on every layer where the
// configuration has one.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_phi3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_phi3_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kPhi3Family{read_phi3_config, build_llama, read_phi3_gguf};

}  // namespace quire::models
