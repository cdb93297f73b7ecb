// Helium (Kyutai, 2025): Llama whose neighbours in a head rotate together.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_helium_config(const boost::json::object& config, const boost::json::object& generation);

inline constexpr Family kHeliumFamily{read_helium_config, build_llama};

}  // namespace quire::models
