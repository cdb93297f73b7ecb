// Mistral (Jiang et al., 2023): Llama with a sliding window on every layer where the configuration has one.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_mistral_config(const boost::json::object& config, const boost::json::object& generation);

inline constexpr Family kMistralFamily{read_mistral_config, build_llama};

}  // namespace quire::models
