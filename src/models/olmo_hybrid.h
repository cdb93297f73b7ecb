// OLMo hybrid (Ai2, 2026): of four layers three have a gated delta net, with norms before the blocks, and one has OLMo
// 3's attention, with norms after them, mostly without positions.
#pragma once

#include "models/model.h"

namespace quire::models {

Result<ModelConfig> read_olmo_hybrid_config(const boost::json::object& config, const boost::json::object& generation);
Result<std::unique_ptr<Model>> build_olmo_hybrid(const ModelConfig& config, int64_t num_positions, nn::Loader& loader);

inline constexpr Family kOlmoHybridFamily{read_olmo_hybrid_config, build_olmo_hybrid};

}  // namespace quire::models
