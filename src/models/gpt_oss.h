// gpt-oss (OpenAI, 2025): alternating windows, sinks in the softmax of attention, experts with biases and a clamped
// gate, whose matrices are published in MXFP4.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_gpt_oss_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_gpt_oss_gguf(const checkpoint::Checkpoint& checkpoint);
Result<std::unique_ptr<Model>> build_gpt_oss(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kGptOssFamily{read_gpt_oss_config, build_gpt_oss, read_gpt_oss_gguf};

}  // namespace quire::models
