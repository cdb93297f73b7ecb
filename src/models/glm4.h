// GLM-4 (GLM Team, 2024): half of each head rotates, by neighbouring pairs. Glm4ForCausalLM has norms on both sides of
// its blocks, GlmForCausalLM before them alone.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_glm_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_glm_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_glm(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_glm4(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGlmFamily{read_glm_config, build_glm};
inline constexpr Family kGlm4Family{read_glm_config, build_glm4, read_glm_gguf};

}  // namespace quire::models
