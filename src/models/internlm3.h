// InternLM 3 (Shanghai AI Laboratory, 2025): Llama with names of its own for its biases.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_internlm3_config(const boost::json::object& config, const boost::json::object& generation);

inline constexpr Family kInternLm3Family{read_internlm3_config, build_llama};

}  // namespace quire::models
