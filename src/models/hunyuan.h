// HunYuan (Tencent, 2025): Llama with norms of the heads of queries and keys behind their rotation, whose base
// frequency may be stretched by a fixed number; with experts and a shared one, or without.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_hunyuan_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_hunyuan_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_hunyuan_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_hunyuan_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_hunyuan(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_hunyuan_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kHunyuanFamily{read_hunyuan_config, build_hunyuan, read_hunyuan_gguf};
inline constexpr Family kHunyuanMoeFamily{read_hunyuan_moe_config, build_hunyuan_moe, read_hunyuan_moe_gguf};

}  // namespace quire::models
