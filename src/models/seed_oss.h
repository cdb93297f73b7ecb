// Seed-OSS (ByteDance, 2025): Llama with biases of queries, keys and values.
#pragma once

#include "models/llama.h"

namespace quire::models {

Result<ModelConfig> read_seed_oss_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_seed_oss_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kSeedOssFamily{read_seed_oss_config, build_llama, read_seed_oss_gguf};

}  // namespace quire::models
