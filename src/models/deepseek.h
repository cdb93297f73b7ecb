// DeepSeek V2 and V3 (DeepSeek-AI, 2024): multi-head latent attention; after the first dense layers many small experts
// with shared ones. GLM-4.7 Flash is a V3 of other sizes.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_deepseek_v2_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_deepseek_v3_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_glm4_moe_lite_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_deepseek_v2_gguf(const checkpoint::Checkpoint& checkpoint);
Result<ModelConfig> read_deepseek_v3_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_deepseek(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

// The first of the layers that predict the tokens after the next (DeepSeek-AI, "DeepSeek-V3 technical report", 2024,
// section 2.2), which a checkpoint of V3 has behind its last: a DraftHead over that model. Errors: those of the model's
// configuration; invalid_argument for one without such layers; unimplemented for another architecture.
Result<ModelConfig> read_deepseek_next_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_deepseek_next(const ModelConfig& config, int64_t num_positions,
                                                   nn::Loader& loader);

inline constexpr Family kDeepseekNextFamily{read_deepseek_next_config, build_deepseek_next};
inline constexpr Family kDeepseekV2Family{read_deepseek_v2_config, build_deepseek, read_deepseek_v2_gguf};
inline constexpr Family kDeepseekV3Family{read_deepseek_v3_config, build_deepseek, read_deepseek_v3_gguf};
inline constexpr Family kGlm4MoeLiteFamily{read_glm4_moe_lite_config, build_deepseek};  // in GGUF a DeepSeek V3

}  // namespace quire::models
