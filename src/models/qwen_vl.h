// The text models of Qwen2-VL, Qwen2.5-VL (Qwen2) and Qwen3-VL (Qwen3). Their ropes have a position for time, height
// and width each, which of text are one and the same.
#pragma once

#include "models/model.h"

namespace quire::models {

// The text model's configuration, its rope that of text.
Result<boost::json::object> text_of_qwen(const boost::json::object& config);

Result<ModelConfig> read_qwen2_vl_config(const boost::json::object& config, const boost::json::object& generation);
Result<ModelConfig> read_qwen3_vl_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_qwen2_vl(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);
Result<std::unique_ptr<Model>> build_qwen3_vl(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kQwen2VlFamily{read_qwen2_vl_config, build_qwen2_vl};
inline constexpr Family kQwen3VlFamily{read_qwen3_vl_config, build_qwen3_vl};

}  // namespace quire::models
