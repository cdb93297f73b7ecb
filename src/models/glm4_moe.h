// GLM-4.5 and later (GLM Team, 2025) and dots.llm1 (rednote, 2025): grouped-query attention, DeepSeek V3's routers and
// shared experts. Solar Open (Upstage, 2026): the same without norms of heads or dense layers.
#pragma once

#include "models/decoder.h"

namespace quire::models {

Result<ModelConfig> read_glm4_moe_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_glm4_moe_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_glm4_moe(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

// What its layers are made of.
DecoderShape glm4_moe_shape(const ModelConfig& config);

Result<ModelConfig> read_dots1_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_solar_open_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_dots1_gguf(const checkpoint::Checkpoint& checkpoint);

inline constexpr Family kGlm4MoeFamily{read_glm4_moe_config, build_glm4_moe, read_glm4_moe_gguf};
inline constexpr Family kDots1Family{read_dots1_config, build_glm4_moe, read_dots1_gguf};
inline constexpr Family kSolarOpenFamily{read_solar_open_config, build_glm4_moe};

}  // namespace quire::models
