// DeepSeek V2 and V3 (DeepSeek-AI, 2024): multi-head latent attention; after the first dense layers many small experts
// with shared ones. GLM-4.7 Flash is a V3 of other sizes. Mistral 4 (Mistral AI, 2026): softmax in the routers' place,
// and queries that grow with their positions.
#pragma once

#include "models/decoder.h"

namespace quire::models {

Result<ModelConfig> read_deepseek_v2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_deepseek_v3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_glm4_moe_lite_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_mistral4_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_mistral4_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_deepseek_v2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_deepseek_v3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_deepseek(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

// What its layers are made of.
DecoderShape deepseek_shape();

inline constexpr Family kDeepseekV2Family{read_deepseek_v2_config, build_deepseek, read_deepseek_v2_gguf};
inline constexpr Family kDeepseekV3Family{read_deepseek_v3_config, build_deepseek, read_deepseek_v3_gguf};
inline constexpr Family kGlm4MoeLiteFamily{read_glm4_moe_lite_config, build_deepseek};  // in GGUF a DeepSeek V3
inline constexpr Family kMistral4Family{read_mistral4_config, build_deepseek, read_mistral4_gguf};

}  // namespace quire::models
