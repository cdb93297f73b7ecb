// ERNIE 4.5 (Baidu, 2025): Llama whose neighbours in a head rotate together; and the same with experts, chosen with a
// correction of their softmax.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_ernie4_5_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_ernie4_5_gguf(const checkpoint::Checkpoint& checkpoint);

Result<ModelConfig> read_ernie4_5_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_ernie4_5_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_ernie4_5_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kErnie45Family{read_ernie4_5_config, build_llama, read_ernie4_5_gguf};
inline constexpr Family kErnie45MoeFamily{read_ernie4_5_moe_config, build_ernie4_5_moe, read_ernie4_5_moe_gguf};

}  // namespace quire::models
