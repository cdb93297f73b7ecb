// CWM (Meta, 2025): Llama with windows on some layers, three of four where the file does not say which.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_cwm_config(const boost::json::object& config, const boost::json::object& generation);

inline constexpr Family kCwmFamily{read_cwm_config, build_llama};

}  // namespace quire::models
