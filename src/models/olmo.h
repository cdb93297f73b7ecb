// OLMo (Groeneveld et al., 2024): Llama with layer norms that have no parameters; queries, keys and values may be cut
// off.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_olmo_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_olmo_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_olmo(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOlmoFamily{read_olmo_config, build_olmo, read_olmo_gguf};

// "clip_qkv", and how GGUF calls it.
Status read_qkv_limit(const boost::json::object& config, ModelConfig& out);
Status read_gguf_qkv_limit(const checkpoint::Checkpoint& checkpoint, ModelConfig& out);

}  // namespace quire::models
