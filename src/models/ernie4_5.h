// ERNIE 4.5 (Baidu, 2025), dense: Llama whose neighbours in a head rotate together.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_ernie4_5_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_ernie4_5_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kErnie45Family{read_ernie4_5_config, build_llama, read_ernie4_5_gguf};

}  // namespace quire::models
