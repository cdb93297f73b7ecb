// OPT (Zhang et al., 2022): layer norms before or after the blocks, learned positions from 2 on, a plain feed-forward
// block.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_opt_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_opt(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOptFamily{read_opt_config, build_opt};

}  // namespace quire::models
