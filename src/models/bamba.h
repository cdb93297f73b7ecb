// Bamba (IBM, Princeton, CMU and UIUC, 2024): layers of Mamba 2 and a few of attention, of whose heads half rotates.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_bamba_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_bamba(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kBambaFamily{read_bamba_config, build_bamba};

}  // namespace quire::models
